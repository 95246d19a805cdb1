/* Recurrent layers and their cells, the same on every device: the inputs' products of all steps are one product, and a step is a
 * product and a few operations on its rows.
 *
 * A row of a step stands for a sequence. The steps of a layer have the numbers of rows that a packed sequence says, in the order
 * in which they are computed: falling, or rising where a layer runs backwards. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "call.h"
#include "front.h"

namespace tlrt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum Kind : int64_t { LSTM, GRU, TANH, RELU };
constexpr int64_t GATES[] = {4, 3, 1, 1};

/* The steps of a sequence in the order of computation: the first row of each among all rows, and its number of rows. */
struct Steps {
    std::vector<int64_t> first, rows;
    int64_t all() const { return std::accumulate(rows.begin(), rows.end(), INT64_C(0)); }
    at::Tensor of(const at::Tensor &t, size_t step) const { return t.narrow(0, first[step], rows[step]); }
    /* All rows of the steps' tensors, in the order of the sequence. */
    at::Tensor joined(std::vector<at::Tensor> parts) const
    {
        if (first.size() > 1 && first[0] > first[1]) std::reverse(parts.begin(), parts.end());
        return at::cat(parts);
    }
};

Steps steps_of(at::IntArrayRef rows, bool reverse)
{
    Steps s;
    int64_t first = 0;
    for (const int64_t n : rows) {
        s.first.push_back(first);
        s.rows.push_back(n);
        first += n;
    }
    if (reverse) {
        std::reverse(s.first.begin(), s.first.end());
        std::reverse(s.rows.begin(), s.rows.end());
    }
    return s;
}

/* A state that is handed from step to step: rows join it from `more`, and rows that leave it are kept. */
struct Running {
    at::Tensor value, more;
    std::vector<at::Tensor> ended;
    Running() = default;
    Running(const at::Tensor &more, int64_t rows) : value(more.narrow(0, 0, rows)), more(more) {}
    void resize(int64_t rows)
    {
        const int64_t had = value.size(0);
        if (rows > had) value = at::cat({value, more.narrow(0, had, rows - had)});
        if (rows < had) {
            ended.push_back(value.narrow(0, rows, had - rows));
            value = value.narrow(0, 0, rows);
        }
    }
    /* The state of all rows, where each ended. */
    at::Tensor all()
    {
        if (ended.empty()) return value;
        std::vector<at::Tensor> parts = {value};
        parts.insert(parts.end(), ended.rbegin(), ended.rend());
        return at::cat(parts);
    }
};

/* What a layer in one direction computes, and what its gradient reads of it. */
struct Made {
    at::Tensor y, h, c;                                   /* outputs of all steps, last states */
    at::Tensor gates, hidden, before, cells_before, tanh; /* of all steps */
};

/* `inputs` are the products of the inputs and their bias, one row of gates for each row of a step. */
Made compute(Kind kind, const at::Tensor &inputs, const Steps &steps, const at::Tensor &h0, const at::Tensor &c0,
             const at::Tensor &weight, const at::Tensor &bias, const at::Tensor &projection, bool keep)
{
    const int64_t n = weight.size(0) / GATES[kind];
    const at::Tensor across = weight.t().contiguous();
    const at::Tensor projected = projection.defined() ? projection.t().contiguous() : projection;
    Running h(h0, steps.rows[0]), c;
    if (kind == LSTM) c = Running(c0, steps.rows[0]);
    std::vector<at::Tensor> ys, gates, hiddens, befores, cells, tanhs;
    for (size_t t = 0; t < steps.rows.size(); t++) {
        h.resize(steps.rows[t]);
        if (keep) befores.push_back(h.value);
        const at::Tensor x = steps.of(inputs, t);
        at::Tensor product = at::mm(h.value, across);
        if (bias.defined()) product = product.add(bias);
        if (kind == LSTM) {
            c.resize(steps.rows[t]);
            const at::Tensor a = product.add(x), s = a.sigmoid(), g = a.narrow(1, 2 * n, n).tanh();
            if (keep) {
                cells.push_back(c.value);
                gates.push_back(at::cat({s.narrow(1, 0, 2 * n), g, s.narrow(1, 3 * n, n)}, 1));
            }
            c.value = s.narrow(1, n, n).mul(c.value).add(s.narrow(1, 0, n).mul(g));
            const at::Tensor tanh = c.value.tanh();
            if (keep) tanhs.push_back(tanh);
            h.value = s.narrow(1, 3 * n, n).mul(tanh);
            if (projection.defined()) h.value = at::mm(h.value, projected);
        } else if (kind == GRU) {
            const at::Tensor rz = product.narrow(1, 0, 2 * n).add(x.narrow(1, 0, 2 * n)).sigmoid();
            const at::Tensor hidden = product.narrow(1, 2 * n, n);
            const at::Tensor g = rz.narrow(1, 0, n).mul(hidden).add(x.narrow(1, 2 * n, n)).tanh();
            if (keep) {
                gates.push_back(at::cat({rz, g}, 1));
                hiddens.push_back(hidden);
            }
            h.value = h.value.sub(g).mul(rz.narrow(1, n, n)).add(g);
        } else {
            const at::Tensor a = product.add(x);
            h.value = kind == TANH ? a.tanh() : a.relu();
        }
        ys.push_back(h.value);
    }
    Made made;
    made.y = steps.joined(ys);
    made.h = h.all();
    if (kind == LSTM) made.c = c.all();
    if (keep) {
        made.before = steps.joined(befores);
        if (kind <= GRU) made.gates = steps.joined(gates);
        if (kind == GRU) made.hidden = steps.joined(hiddens);
        if (kind == LSTM) {
            made.cells_before = steps.joined(cells);
            made.tanh = steps.joined(tanhs);
        }
    }
    return made;
}

at::Tensor one_less_square(const at::Tensor &x) { return at::rsub(x.mul(x), 1); }
at::Tensor slope(const at::Tensor &sigmoid) { return at::rsub(sigmoid, 1).mul(sigmoid); }

/* Gradients of `inputs` and of what the steps share. All factors that do not depend on the gradient are computed for all steps at
 * once, so a step backwards is a product and few operations. */
struct Grads {
    at::Tensor inputs, h0, c0, weight, bias, projection;
};

Grads differentiate(Kind kind, const Made &made, const Steps &steps, const at::Tensor &h0, const at::Tensor &c0,
                    const at::Tensor &weight, const at::Tensor &bias, const at::Tensor &projection,
                    const at::Tensor &gy, const at::Tensor &gh, const at::Tensor &gc)
{
    const int64_t n = weight.size(0) / GATES[kind], last = steps.rows.back();
    const at::Tensor whole = plain(weight), down = projection.defined() ? plain(projection) : projection;
    const auto gate = [&](int64_t k) { return made.gates.narrow(1, k * n, n); };
    at::Tensor factors, extra, outer,
        kept; /* (rows, gates, n), and of the last gate, of the cell, of the state before */
    if (kind == LSTM) {
        const at::Tensor i = gate(0), f = gate(1), g = gate(2), o = gate(3);
        factors = at::stack({g.mul(slope(i)), made.cells_before.mul(slope(f)), i.mul(one_less_square(g))}, 1);
        extra = made.tanh.mul(slope(o));
        outer = o.mul(one_less_square(made.tanh));
        kept = f;
    } else if (kind == GRU) {
        const at::Tensor r = gate(0), z = gate(1), g = gate(2);
        const at::Tensor candidate = at::rsub(z, 1).mul(one_less_square(g));
        factors = at::stack(
            {candidate.mul(made.hidden).mul(slope(r)), made.before.sub(g).mul(slope(z)), candidate.mul(r)}, 1);
        extra = candidate;
        kept = z;
    } else {
        factors = (kind == TANH ? one_less_square(made.y) : made.y.gt(0).to(at::kFloat)).unsqueeze(1);
    }
    /* the gradient of a state after the last step, else of that after a step */
    const at::Tensor none = at::zeros({1}, h0.options());
    const auto rows = [&](const at::Tensor &g, const at::Tensor &like) {
        return g.defined() ? g : none.expand(like.sizes());
    };
    Running dh(rows(gh, h0), last), dc;
    if (kind == LSTM) dc = Running(rows(gc, c0), last);
    std::vector<at::Tensor> gates(steps.rows.size()), states(steps.rows.size());
    for (size_t t = steps.rows.size(); t-- > 0;) {
        const int64_t b = steps.rows[t];
        dh.resize(b);
        at::Tensor d = gy.defined() ? dh.value.add(steps.of(gy, t)) : dh.value;
        states[t] = d;
        if (projection.defined()) d = at::mm(d, down);
        if (kind == LSTM) {
            dc.resize(b);
            const at::Tensor cell = dc.value.add(d.mul(steps.of(outer, t)));
            at::Tensor all = at::empty({b, 4, n}, h0.options());
            at::Tensor three = all.narrow(1, 0, 3), fourth = all.select(1, 3);
            at::mul_out(three, steps.of(factors, t), cell.unsqueeze(1));
            at::mul_out(fourth, d, steps.of(extra, t));
            gates[t] = all.view({b, 4 * n});
            dc.value = cell.mul(steps.of(kept, t));
            dh.value = at::mm(gates[t], whole);
        } else {
            gates[t] = steps.of(factors, t).mul(d.unsqueeze(1)).view({b, GATES[kind] * n});
            dh.value = at::mm(gates[t], whole);
            if (kind == GRU) dh.value = dh.value.add(d.mul(steps.of(kept, t)));
        }
    }
    const at::Tensor all = steps.joined(gates);
    Grads g;
    g.h0 = dh.all();
    if (kind == LSTM) g.c0 = dc.all();
    g.weight = at::mm(all.t(), made.before);
    if (bias.defined()) g.bias = all.sum(0);
    g.inputs = all;
    if (kind == GRU) {
        const at::Tensor d = steps.joined(states);
        g.inputs = at::cat({all.narrow(1, 0, 2 * n), d.mul(extra)}, 1);
    }
    if (projection.defined()) g.projection = at::mm(steps.joined(states).t(), gate(3).mul(made.tanh));
    return g;
}

/* One direction of one layer. */
struct Layer : torch::autograd::Function<Layer> {
    static variable_list forward(AutogradContext *ctx, const at::Tensor &inputs, const at::Tensor &h0,
                                 const std::optional<at::Tensor> &c0, const at::Tensor &weight,
                                 const std::optional<at::Tensor> &bias, const std::optional<at::Tensor> &projection,
                                 int64_t kind, std::vector<int64_t> rows, bool reverse)
    {
        const auto of = [](const std::optional<at::Tensor> &t) { return t.value_or(at::Tensor()); };
        const bool keep = inputs.requires_grad() || h0.requires_grad() || of(c0).requires_grad() ||
                          weight.requires_grad() || of(bias).requires_grad() || of(projection).requires_grad();
        const Made made =
            compute((Kind)kind, inputs, steps_of(rows, reverse), h0, of(c0), weight, of(bias), of(projection), keep);
        if (keep) {
            ctx->save_for_backward({inputs, h0, of(c0), weight, of(bias), of(projection), made.y, made.gates,
                                    made.hidden, made.before, made.cells_before, made.tanh});
            ctx->saved_data["kind"] = kind;
            ctx->saved_data["rows"] = rows;
            ctx->saved_data["reverse"] = reverse;
            ctx->set_materialize_grads(false);
        }
        variable_list found = {made.y, made.h};
        if (made.c.defined()) found.push_back(made.c);
        return found;
    }

    static variable_list backward(AutogradContext *ctx, variable_list above)
    {
        const auto saved = ctx->get_saved_variables();
        const Kind kind = (Kind)ctx->saved_data["kind"].toInt();
        const Steps steps = steps_of(ctx->saved_data["rows"].toIntVector(), ctx->saved_data["reverse"].toBool());
        const at::Tensor &inputs = saved[0], &h0 = saved[1], &c0 = saved[2], &weight = saved[3], &bias = saved[4],
                         &projection = saved[5];
        variable_list found(9);
        const at::Tensor gc = above.size() > 2 ? above[2] : at::Tensor();
        if (!above[0].defined() && !above[1].defined() && !gc.defined()) return found;
        if (at::GradMode::is_enabled()) { /* a gradient that will be differentiated: of the steps' own operators */
            const Made made = compute(kind, inputs, steps, h0, c0, weight, bias, projection, false);
            variable_list outputs, cotangents, leaves;
            const at::Tensor of[] = {made.y, made.h, made.c};
            for (size_t i = 0; i < above.size(); i++)
                if (above[i].defined()) {
                    outputs.push_back(of[i]);
                    cotangents.push_back(above[i]);
                }
            for (size_t i = 0; i < 6; i++)
                if (saved[i].defined() && saved[i].requires_grad()) leaves.push_back(saved[i]);
            const variable_list grads = torch::autograd::grad(outputs, leaves, cotangents, std::nullopt, true, true);
            for (size_t i = 0, next = 0; i < 6; i++)
                if (saved[i].defined() && saved[i].requires_grad()) found[i] = grads[next++];
            return found;
        }
        Made made;
        made.y = saved[6], made.gates = saved[7], made.hidden = saved[8], made.before = saved[9];
        made.cells_before = saved[10], made.tanh = saved[11];
        const Grads g = differentiate(kind, made, steps, h0, c0, weight, bias, projection, above[0], above[1], gc);
        const at::Tensor all[] = {g.inputs, g.h0, g.c0, g.weight, g.bias, g.projection};
        for (size_t i = 0; i < 6; i++)
            if (saved[i].defined() && saved[i].requires_grad()) found[i] = all[i];
        return found;
    }
};

/* ---- layers --------------------------------------------------------------------------------------------------------- */

at::Tensor to_float(const at::Tensor &t) { return t.defined() ? t.to(at::kFloat) : t; }

struct Weights {
    at::Tensor ih, hh, b_ih, b_hh, hr;
};

/* One direction: the rows of all steps, and the states of all sequences. */
struct Result {
    at::Tensor y, h, c;
};

Result direction(Kind kind, const at::Tensor &x, at::IntArrayRef rows, const at::Tensor &h0, const at::Tensor &c0,
                 const Weights &w, bool reverse)
{
    /* the hidden part of a GRU's last gate is scaled before it is added, so its bias stays apart */
    const bool one_bias = kind != GRU && w.b_ih.defined();
    const at::Tensor bias = one_bias ? w.b_ih.add(w.b_hh) : w.b_ih;
    const at::Tensor inputs = bias.defined() ? at::addmm(bias, x, w.ih.t()) : at::mm(x, w.ih.t());
    const auto maybe = [](const at::Tensor &t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
    const variable_list found = Layer::apply(inputs, h0, maybe(c0), w.hh, maybe(one_bias ? at::Tensor() : w.b_hh),
                                             maybe(w.hr), (int64_t)kind, rows.vec(), reverse);
    return {found[0], found[1], kind == LSTM ? found[2] : at::Tensor()};
}

/* All layers: x of (rows of all steps, features), states of (layers·directions, sequences, n). */
Result layers(Kind kind, at::Tensor x, at::IntArrayRef rows, const at::Tensor &h0, const at::Tensor &c0,
              at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
              bool bidirectional)
{
    const bool projected = kind == LSTM && h0.size(2) != c0.size(2);
    const size_t each = 2 + 2 * has_biases + projected;
    const int64_t directions = 1 + bidirectional;
    TORCH_CHECK((int64_t)(each * num_layers * directions) == (int64_t)params.size(), "recurrent layer: params: got ",
                params.size(), " tensors, expected ", each * num_layers * directions);
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
                    "recurrent layer: got tensors of ", tensors[0].scalar_type(), " on ", tensors[0].device(), " and ",
                    t.scalar_type(), " on ", t.device(), ", expected one type on one device");
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
    TORCH_CHECK(x.dim() == 3, name, ": input: got ", x.dim(), " axes, expected 3");
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
    TORCH_CHECK(sizes.device().is_cpu(), name, ": batch_sizes: got one on ", sizes.device(),
                ", expected one on the CPU");
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
    TORCH_CHECK(x.dim() == 2, name, ": input: got ", x.dim(), " axes, expected 2");
    TORCH_CHECK(hx[0].size(0) == x.size(0), name, ": hx: got ", hx[0].size(0), " rows, expected ", x.size(0));
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
