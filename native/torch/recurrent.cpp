/* Recurrent layers and their cells, the same on every device. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include <algorithm>

#include "front.h"
#include "recurrent.h"

namespace tlrt {
namespace {

at::Tensor to_float(const at::Tensor &t) { return t.defined() ? t.to(at::kFloat) : t; }

/* All layers: x of (rows of all steps, features), states of (layers·directions, sequences, n). */
Result layers(Kind kind, at::Tensor x, at::IntArrayRef rows, const at::Tensor &h0, const at::Tensor &c0,
              at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
              bool bidirectional)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset); /* it has been asked before */
    const bool projected = kind == LSTM && h0.size(2) != c0.size(2);
    const size_t each = 2 + 2 * has_biases + projected;
    const int64_t directions = 1 + bidirectional;
    TORCH_CHECK(
        (int64_t)(each * num_layers * directions) == (int64_t)params.size(),
        message("recurrent layer: params: got ", params.size(), " tensors, expected ", each * num_layers * directions));
    std::vector<at::Tensor> hs, cs;
    for (int64_t layer = 0; layer < num_layers; layer++) {
        std::vector<at::Tensor> ys;
        for (int64_t d = 0; d < directions; d++) {
            const int64_t at_layer = layer * directions + d;
            const at::Tensor *const p = params.data() + at_layer * each;
            const Weights w = {to_float(p[0]), to_float(p[1]), has_biases ? to_float(p[2]) : at::Tensor(),
                               has_biases ? to_float(p[3]) : at::Tensor(),
                               projected ? to_float(p[each - 1]) : at::Tensor()};
            const Result r =
                direction(kind, x, rows, h0[at_layer], kind == LSTM ? c0[at_layer] : at::Tensor(), w, d == 1);
            ys.push_back(r.y);
            hs.push_back(r.h);
            if (kind == LSTM) cs.push_back(r.c);
        }
        x = ys.size() == 1 ? ys[0] : at::cat(ys, 1);
        if (dropout != 0 && train && layer + 1 < num_layers) x = at::dropout(x, dropout, true);
    }
    return {x, at::stack(hs), kind == LSTM ? at::stack(cs) : at::Tensor()};
}

bool takes(const at::Tensor &x, at::TensorList states, at::TensorList params)
{
    std::vector<at::Tensor> all = {x};
    all.insert(all.end(), states.begin(), states.end());
    all.insert(all.end(), params.begin(), params.end());
    if (!is_ours(all) || !x.numel()) return false;
    return std::none_of(all.begin(), all.end(), [](const at::Tensor &t) { return t.scalar_type() == at::kDouble; });
}

void check_same(at::TensorList tensors)
{
    for (const at::Tensor &t : tensors)
        TORCH_CHECK(t.scalar_type() == tensors[0].scalar_type() && t.device() == tensors[0].device(),
                    message("recurrent layer: got tensors of ", tensors[0].scalar_type(), " on ", tensors[0].device(),
                            " and ", t.scalar_type(), " on ", t.device(), ", expected one type on one device"));
}

void note(const char *name, const at::Tensor &x, int64_t rows, at::TensorList params)
{
    int64_t size = 0;
    for (const at::Tensor &p : params)
        size += p.dim() > 1 ? p.numel() : 0;
    current()->add(name, true, 2 * rows * size);
}

/* One operator's types: autocast's where it is on; the results are rounded once. */
struct Call {
    at::Tensor x;
    std::vector<at::Tensor> states, params;
    at::ScalarType type;

    Call(const at::Tensor &input, at::TensorList hx, at::TensorList weights) : x(autocast(input))
    {
        for (const at::Tensor &t : hx)
            states.push_back(autocast(t));
        for (const at::Tensor &t : weights)
            params.push_back(autocast(t));
        type = x.scalar_type();
        std::vector<at::Tensor> all = {x};
        all.insert(all.end(), states.begin(), states.end());
        all.insert(all.end(), params.begin(), params.end());
        check_same(all);
        x = to_float(x);
        for (at::Tensor &t : states)
            t = to_float(t);
    }
    Result rounded(const Result &r) const { return {r.y.to(type), r.h.to(type), r.c.defined() ? r.c.to(type) : r.c}; }
};

Result whole(Kind kind, const char *name, const at::Tensor &input, at::TensorList hx, at::TensorList params,
             bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first)
{
    const Call call(input, hx, params);
    const at::Tensor x = batch_first ? call.x.transpose(0, 1) : call.x;
    TORCH_CHECK(x.dim() == 3, message(name, ": input: got ", x.dim(), " axes, expected 3"));
    const std::vector<int64_t> rows((size_t)x.size(0), x.size(1));
    note(name, x, x.size(0) * x.size(1), params);
    Result r = layers(kind, x.reshape({x.size(0) * x.size(1), x.size(2)}), rows, call.states[0],
                      kind == LSTM ? call.states[1] : at::Tensor(), call.params, has_biases, num_layers, dropout, train,
                      bidirectional);
    r.y = r.y.view({x.size(0), x.size(1), r.y.size(1)});
    if (batch_first) r.y = r.y.transpose(0, 1);
    return call.rounded(r);
}

Result packed(Kind kind, const char *name, const at::Tensor &data, const at::Tensor &batch_sizes, at::TensorList hx,
              at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
              bool bidirectional)
{
    const Call call(data, hx, params);
    const at::Tensor sizes = batch_sizes.to(at::kLong).contiguous();
    TORCH_CHECK(sizes.device().is_cpu(),
                message(name, ": batch_sizes: got one on ", sizes.device(), ", expected one on the CPU"));
    note(name, data, data.size(0), params);
    return call.rounded(layers(kind, call.x, at::IntArrayRef(sizes.data_ptr<int64_t>(), (size_t)sizes.numel()),
                               call.states[0], kind == LSTM ? call.states[1] : at::Tensor(), call.params, has_biases,
                               num_layers, dropout, train, bidirectional));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor &x, at::TensorList hx, at::TensorList params,
                                                    bool biases, int64_t n, double p, bool train, bool both,
                                                    bool batch_first)
{
    using Op = at::_ops::lstm_input;
    if (hx.size() != 2 || !takes(x, hx, params))
        return as_without<Op>(x, hx, params, biases, n, p, train, both, batch_first);
    const Result r = whole(LSTM, "lstm", x, hx, params, biases, n, p, train, both, batch_first);
    return {r.y, r.h, r.c};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_data(const at::Tensor &x, const at::Tensor &sizes,
                                                         at::TensorList hx, at::TensorList params, bool biases,
                                                         int64_t n, double p, bool train, bool both)
{
    using Op = at::_ops::lstm_data;
    if (hx.size() != 2 || !takes(x, hx, params)) return as_without<Op>(x, sizes, hx, params, biases, n, p, train, both);
    const Result r = packed(LSTM, "lstm", x, sizes, hx, params, biases, n, p, train, both);
    return {r.y, r.h, r.c};
}
template <class Op, Kind K>
std::tuple<at::Tensor, at::Tensor> rnn(const at::Tensor &x, const at::Tensor &h, at::TensorList params, bool biases,
                                       int64_t n, double p, bool train, bool both, bool batch_first)
{
    if (!takes(x, h, params)) return as_without<Op>(x, h, params, biases, n, p, train, both, batch_first);
    const Result r = whole(K, Op::name, x, h, params, biases, n, p, train, both, batch_first);
    return {r.y, r.h};
}
template <class Op, Kind K>
std::tuple<at::Tensor, at::Tensor> rnn_data(const at::Tensor &x, const at::Tensor &sizes, const at::Tensor &h,
                                            at::TensorList params, bool biases, int64_t n, double p, bool train,
                                            bool both)
{
    if (!takes(x, h, params)) return as_without<Op>(x, sizes, h, params, biases, n, p, train, both);
    const Result r = packed(K, Op::name, x, sizes, h, params, biases, n, p, train, both);
    return {r.y, r.h};
}

/* A cell is a layer of one step. */
std::vector<at::Tensor> cell_params(const at::Tensor &w_ih, const at::Tensor &w_hh,
                                    const std::optional<at::Tensor> &b_ih, const std::optional<at::Tensor> &b_hh)
{
    std::vector<at::Tensor> params = {w_ih, w_hh};
    for (const auto &b : {b_ih, b_hh})
        if (b && b->defined()) params.push_back(*b);
    return params;
}

Result cell(Kind kind, const char *name, const at::Tensor &x, at::TensorList hx, at::TensorList params)
{
    std::vector<at::Tensor> states;
    for (const at::Tensor &t : hx)
        states.push_back(t.unsqueeze(0));
    TORCH_CHECK(x.dim() == 2, message(name, ": input: got ", x.dim(), " axes, expected 2"));
    TORCH_CHECK(hx[0].size(0) == x.size(0), message(name, ": hx: got ", hx[0].size(0), " rows, expected ", x.size(0)));
    Result r = whole(kind, name, x.unsqueeze(0), states, params, params.size() == 4, 1, 0, false, false, false);
    r.h = r.h.squeeze(0);
    if (r.c.defined()) r.c = r.c.squeeze(0);
    return r;
}

std::tuple<at::Tensor, at::Tensor> lstm_cell(const at::Tensor &x, at::TensorList hx, const at::Tensor &w_ih,
                                             const at::Tensor &w_hh, const std::optional<at::Tensor> &b_ih,
                                             const std::optional<at::Tensor> &b_hh)
{
    const std::vector<at::Tensor> params = cell_params(w_ih, w_hh, b_ih, b_hh);
    if (hx.size() != 2 || params.size() == 3 || !takes(x, hx, params))
        return as_without<at::_ops::lstm_cell>(x, hx, w_ih, w_hh, b_ih, b_hh);
    const Result r = cell(LSTM, "lstm_cell", x, hx, params);
    return {r.h, r.c};
}
template <class Op, Kind K>
at::Tensor rnn_cell(const at::Tensor &x, const at::Tensor &h, const at::Tensor &w_ih, const at::Tensor &w_hh,
                    const std::optional<at::Tensor> &b_ih, const std::optional<at::Tensor> &b_hh)
{
    const std::vector<at::Tensor> params = cell_params(w_ih, w_hh, b_ih, b_hh);
    if (params.size() == 3 || !takes(x, h, params)) return as_without<Op>(x, h, w_ih, w_hh, b_ih, b_hh);
    return cell(K, Op::name, x, h, params).h;
}

#define LAYERS(op, kind) \
    m.impl(TLRT_NAME(op##_input), TORCH_FN((rnn<at::_ops::op##_input, kind>))); \
    m.impl(TLRT_NAME(op##_data), TORCH_FN((rnn_data<at::_ops::op##_data, kind>))); \
    m.impl(TLRT_NAME(op##_cell), TORCH_FN((rnn_cell<at::_ops::op##_cell, kind>)))

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    m.impl(TLRT_NAME(lstm_input), TORCH_FN(lstm));
    m.impl(TLRT_NAME(lstm_data), TORCH_FN(lstm_data));
    m.impl(TLRT_NAME(lstm_cell), TORCH_FN(lstm_cell));
    LAYERS(gru, GRU);
    LAYERS(rnn_tanh, TANH);
    LAYERS(rnn_relu, RELU);
}

} // namespace
} // namespace tlrt
