/* A recurrent layer in one direction: the inputs' products of all steps are one product, and a step is a product and a cell.
 *
 * A row of a step stands for a sequence. The steps of a layer have the numbers of rows that a packed sequence says, in the order
 * in which they are computed: falling, or rising where a layer runs backwards. */
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "differentiable.h"
#include "recurrent.h"

namespace tlrt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t GATES[] = {4, 3, 1, 1};

/* Rows of a row-major tensor, without a tensor of their own, which costs as much as a small kernel. */
struct Rows {
    at::Tensor all;
    int64_t first = 0, count = 0;
    at::Tensor tensor() const { return count == all.size(0) ? all : all.narrow(0, first, count); }
};

/* The steps of a sequence in the order of computation: the first row of each among all rows, and its number of rows. */
struct Steps {
    std::vector<int64_t> first, rows;
    int64_t all() const { return std::accumulate(rows.begin(), rows.end(), INT64_C(0)); }
    Rows of(const at::Tensor &t, size_t step) const { return {t, first[step], rows[step]}; }
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

/* A state that is handed from step to step: rows join it from `more`, and of rows that leave it a copy is kept. */
struct Running {
    Rows value;
    at::Tensor more;
    std::vector<at::Tensor> ended;
    Running() = default;
    Running(const at::Tensor &more, int64_t rows) : value{plain(more), 0, rows}, more(value.all) {}
    void resize(int64_t rows)
    {
        const int64_t had = value.count;
        if (rows > had) value = {at::cat({value.tensor(), more.narrow(0, had, rows - had)}), 0, rows};
        if (rows < had) {
            ended.push_back(Rows{value.all, value.first + rows, had - rows}.tensor().clone());
            value.count = rows;
        }
    }
    /* The state of all rows, where each ended. */
    at::Tensor all() const
    {
        std::vector<at::Tensor> parts = {value.tensor()};
        parts.insert(parts.end(), ended.rbegin(), ended.rend());
        return at::cat(parts);
    }
};

/* The products of all rows with the input's weights. The hidden part of a GRU's last gate is scaled before it is added, so its
 * bias stays apart. */
at::Tensor products_of(Kind kind, const at::Tensor &x, const Weights &w)
{
    const at::Tensor bias = kind != GRU && w.b_ih.defined() ? w.b_ih.add(w.b_hh) : w.b_ih;
    return bias.defined() ? at::addmm(bias, x, w.ih.t()) : at::mm(x, w.ih.t());
}

/* The layer of PyTorch's operators, which can be differentiated twice. */
Result composed(Kind kind, const at::Tensor &x, const Steps &steps, const at::Tensor &h0, const at::Tensor &c0,
                const Weights &w)
{
    const int64_t n = w.hh.size(0) / GATES[kind];
    const at::Tensor inputs = products_of(kind, x, w);
    Running h(h0, steps.rows[0]), c;
    if (kind == LSTM) c = Running(c0, steps.rows[0]);
    std::vector<at::Tensor> ys;
    for (size_t t = 0; t < steps.rows.size(); t++) {
        h.resize(steps.rows[t]);
        const at::Tensor from = steps.of(inputs, t).tensor(), before = h.value.tensor();
        at::Tensor product = at::mm(before, w.hh.t()), next;
        if (kind == GRU && w.b_hh.defined()) product = product.add(w.b_hh);
        if (kind == LSTM) {
            c.resize(steps.rows[t]);
            const at::Tensor a = product.add(from), s = a.sigmoid(), g = a.narrow(1, 2 * n, n).tanh();
            const at::Tensor cell = s.narrow(1, n, n).mul(c.value.tensor()).add(s.narrow(1, 0, n).mul(g));
            c.value = {cell, 0, cell.size(0)};
            next = s.narrow(1, 3 * n, n).mul(cell.tanh());
            if (w.hr.defined()) next = at::mm(next, w.hr.t());
        } else if (kind == GRU) {
            const at::Tensor rz = product.narrow(1, 0, 2 * n).add(from.narrow(1, 0, 2 * n)).sigmoid();
            const at::Tensor g =
                rz.narrow(1, 0, n).mul(product.narrow(1, 2 * n, n)).add(from.narrow(1, 2 * n, n)).tanh();
            next = before.sub(g).mul(rz.narrow(1, n, n)).add(g);
        } else {
            const at::Tensor a = product.add(from);
            next = kind == TANH ? a.tanh() : a.relu();
        }
        h.value = {next, 0, next.size(0)};
        ys.push_back(next);
    }
    return {steps.joined(ys), h.all(), kind == LSTM ? c.all() : at::Tensor()};
}

/* ---- a layer of the library's cells ------------------------------------------------------------------------------------------ */

/* A buffer of rows; of a copy where they do not begin with whole 16 bytes, which is written back. */
class Operand {
  public:
    enum Use { READ, WRITTEN };
    Operand(torchlean_context *context, const Rows &rows, Use use = READ)
    {
        if (!rows.all.defined()) return;
        const int64_t width = rows.all.size(1);
        const float *begin = rows.all.const_data_ptr<float>() + rows.first * width;
        if ((uintptr_t)begin % 16) {
            const at::Tensor place = rows.tensor();
            copy = use == READ ? place.clone() : fresh(place, place.sizes());
            begin = copy.const_data_ptr<float>();
            if (use == WRITTEN) written = place;
        }
        buffer.emplace(context, const_cast<float *>(begin), u32(rows.count * width));
    }
    ~Operand()
    {
        if (written.defined()) written.copy_(copy);
    }
    operator torchlean_buffer *() const { return buffer ? (torchlean_buffer *)*buffer : nullptr; }
    torchlean_buffer **out() { return buffer->out(); }

  private:
    std::optional<Buffer> buffer;
    at::Tensor copy, written;
};

/* While it lasts, views and new tensors pass by the block and by autograd, which otherwise cost more than a step's kernels. */
struct BelowBlock {
    c10::impl::ExcludeDispatchKeyGuard block{c10::DispatchKeySet({KEY, FRONT})};
    at::AutoDispatchBelowADInplaceOrView autograd;
};

/* y = x·w */
void multiply(torchlean_context *context, const Rows &x, const at::Tensor &w, const Rows &y)
{
    Operand out(context, y, Operand::WRITTEN);
    check(torchlean_cuda_buffer_matmul(Operand(context, x), Buffer(context, w), u32(x.count), u32(x.all.size(1)),
                                       u32(y.all.size(1)), out.out()));
}

void add(torchlean_context *context, const Rows &a, const Rows &b, const Rows &y)
{
    Operand out(context, y, Operand::WRITTEN);
    check(torchlean_cuda_buffer_add(Operand(context, a), Operand(context, b), out.out()));
}

/* What a gradient reads of a layer. */
struct Made : Result {
    at::Tensor gates, cells, inner; /* of all steps */
};

Made compute(Kind kind, const at::Tensor &x, const Steps &steps, const at::Tensor &h0, const at::Tensor &c0,
             const Weights &w)
{
    const int64_t n = w.hh.size(0) / GATES[kind], all = steps.all(), most = std::max(steps.rows[0], steps.rows.back());
    /* transposed once, as rows of what is multiplied next to each other are read faster at every step */
    const at::Tensor inputs = products_of(kind, x, w), hh = plain(w.hh.t()),
                     hr = w.hr.defined() ? plain(w.hr.t()) : w.hr;
    const at::Tensor b_hh = kind == GRU && w.b_hh.defined() ? plain(w.b_hh) : at::Tensor();
    Made made;
    made.y = fresh(inputs, {all, h0.size(1)});
    if (kind <= GRU) made.gates = fresh(inputs, {all, GATES[kind] * n});
    if (kind == LSTM) made.cells = fresh(inputs, {all, n});
    if (kind == GRU) made.inner = fresh(inputs, {all, n});
    const at::Tensor products = fresh(inputs, {most, GATES[kind] * n});
    const at::Tensor hidden = hr.defined() ? fresh(inputs, {most, n}) : at::Tensor();
    torchlean_context *const context = context_of(x);
    std::optional<BelowBlock> below;
    if (kind <= GRU) below.emplace(); /* the others compute by PyTorch's operators */
    Running h(h0, steps.rows[0]), c;
    if (kind == LSTM) c = Running(c0, steps.rows[0]);
    for (size_t t = 0; t < steps.rows.size(); t++) {
        const int64_t b = steps.rows[t];
        h.resize(b);
        const Rows from = steps.of(inputs, t), product = {products, 0, b}, y = steps.of(made.y, t);
        multiply(context, h.value, hh, product);
        if (kind == LSTM) {
            c.resize(b);
            const Rows out = hr.defined() ? Rows{hidden, 0, b} : y, cell = steps.of(made.cells, t);
            {
                Operand gates(context, steps.of(made.gates, t), Operand::WRITTEN),
                    next(context, cell, Operand::WRITTEN), found(context, out, Operand::WRITTEN);
                check(torchlean_cuda_buffer_lstm_cell(Operand(context, from), Operand(context, product),
                                                      Operand(context, c.value), u32(b), u32(n), gates.out(),
                                                      next.out(), found.out()));
            }
            c.value = cell;
            if (hr.defined()) multiply(context, out, hr, y);
        } else if (kind == GRU) {
            Operand gates(context, steps.of(made.gates, t), Operand::WRITTEN),
                inner(context, steps.of(made.inner, t), Operand::WRITTEN), found(context, y, Operand::WRITTEN);
            check(torchlean_cuda_buffer_gru_cell(Operand(context, from), Operand(context, product),
                                                 Buffer(context, b_hh), Operand(context, h.value), u32(b), u32(n),
                                                 gates.out(), inner.out(), found.out()));
        } else {
            const at::Tensor a = product.tensor().add(from.tensor());
            y.tensor().copy_(kind == TANH ? a.tanh() : a.relu());
        }
        h.value = y;
    }
    made.h = h.all();
    if (kind == LSTM) made.c = c.all();
    return made;
}

/* The state before a step, by that after each, where all steps have the same rows. */
Rows before_step(const at::Tensor &after, const at::Tensor &first, const Steps &steps, size_t step)
{
    return step == 0 ? Rows{first, 0, first.size(0)} : steps.of(after, step - 1);
}

bool is_even(const Steps &steps)
{
    return std::all_of(steps.rows.begin(), steps.rows.end(), [&](int64_t n) { return n == steps.rows[0]; });
}

/* The state before each step, of all rows. */
at::Tensor befores(const at::Tensor &after, const at::Tensor &first, const Steps &steps)
{
    const int64_t b = steps.rows[0], all = steps.all();
    if (is_even(steps))
        return steps.first[0] == 0 ? at::cat({first, after.narrow(0, 0, all - b)})
                                   : at::cat({after.narrow(0, b, all - b), first});
    Running state(first, b);
    std::vector<at::Tensor> parts;
    for (size_t t = 0; t < steps.rows.size(); t++) {
        state.resize(steps.rows[t]);
        parts.push_back(state.value.tensor());
        state.value = steps.of(after, t);
    }
    return steps.joined(parts);
}

struct Grads {
    at::Tensor x, h0, c0;
    Weights w;
};

Grads differentiate(Kind kind, const Made &made, const Steps &steps, const at::Tensor &x, const at::Tensor &h0,
                    const at::Tensor &c0, const Weights &w, const at::Tensor &gy, const at::Tensor &gh,
                    const at::Tensor &gc)
{
    const int64_t n = w.hh.size(0) / GATES[kind], last = steps.rows.back(), all = steps.all();
    const at::Tensor hh = plain(w.hh), hr = w.hr.defined() ? plain(w.hr) : w.hr, above = gy.defined() ? plain(gy) : gy;
    const bool even = is_even(steps);
    const at::Tensor first_h = plain(h0), first_c = kind == LSTM ? plain(c0) : c0;
    const at::Tensor before = even || kind != GRU ? at::Tensor() : befores(made.y, h0, steps),
                     cells_before = even || kind != LSTM ? at::Tensor() : befores(made.cells, c0, steps);
    /* of the products with the input's and with the hidden weights, which differ in a GRU alone */
    const at::Tensor inputs = fresh(made.y, {all, GATES[kind] * n}),
                     products = kind == GRU ? fresh(made.y, inputs.sizes()) : inputs;
    /* the gradient of a state after the last step, else of that after a step */
    const auto rows = [&](const at::Tensor &g, const at::Tensor &like) {
        return g.defined() ? g : at::zeros({1}, like.options()).expand(like.sizes());
    };
    Running dh(rows(gh, h0), last), dc;
    if (kind == LSTM) dc = Running(rows(gc, c0), last);
    const at::Tensor states = hr.defined() ? fresh(made.y, {all, h0.size(1)}) : at::Tensor();
    /* what steps use in turn */
    const int64_t most = std::max(steps.rows[0], last);
    const auto turn = [&](int64_t width) { return fresh(made.y, {most, width}); };
    const at::Tensor sum = turn(h0.size(1)), of_h = turn(h0.size(1)), inside = hr.defined() ? turn(n) : hr,
                     of_c[] = {turn(n), turn(n)};
    torchlean_context *const context = context_of(x);
    std::optional<BelowBlock> below;
    if (kind <= GRU) below.emplace();
    for (size_t t = steps.rows.size(); t-- > 0;) {
        const int64_t b = steps.rows[t];
        dh.resize(b);
        Rows d = dh.value;
        if (above.defined()) {
            d = {sum, 0, b};
            add(context, dh.value, steps.of(above, t), d);
        }
        const Rows from = steps.of(inputs, t);
        dh.value = {of_h, 0, b};
        if (hr.defined()) {
            steps.of(states, t).tensor().copy_(d.tensor());
            multiply(context, d, hr, {inside, 0, b});
            d = {inside, 0, b};
        }
        const auto step_before = [&](const at::Tensor &all, const at::Tensor &after, const at::Tensor &first) {
            return even ? before_step(after, first, steps, t) : steps.of(all, t);
        };
        if (kind == LSTM) {
            dc.resize(b);
            const Rows next = {of_c[t % 2], 0, b};
            {
                Operand gx(context, from, Operand::WRITTEN), g_before(context, next, Operand::WRITTEN);
                check(torchlean_cuda_buffer_lstm_cell_bwd(
                    Operand(context, steps.of(made.gates, t)),
                    Operand(context, step_before(cells_before, made.cells, first_c)),
                    Operand(context, steps.of(made.cells, t)), Operand(context, dc.value), Operand(context, d), u32(b),
                    u32(n), gx.out(), nullptr, g_before.out()));
            }
            dc.value = next;
            multiply(context, from, hh, dh.value);
        } else if (kind == GRU) {
            const Rows kept = {of_c[0], 0, b}, through = {of_c[1], 0, b}, by_hidden = steps.of(products, t);
            {
                Operand gx(context, from, Operand::WRITTEN), ga(context, by_hidden, Operand::WRITTEN),
                    g_kept(context, kept, Operand::WRITTEN);
                check(torchlean_cuda_buffer_gru_cell_bwd(
                    Operand(context, steps.of(made.gates, t)), Operand(context, steps.of(made.inner, t)),
                    Operand(context, step_before(before, made.y, first_h)), Operand(context, d), u32(b), u32(n),
                    gx.out(), ga.out(), nullptr, g_kept.out()));
            }
            multiply(context, by_hidden, hh, through);
            add(context, through, kept, dh.value);
        } else {
            const at::Tensor g = d.tensor(), y = steps.of(made.y, t).tensor();
            from.tensor().copy_(kind == TANH ? at::tanh_backward(g, y) : at::threshold_backward(g, y, 0));
            multiply(context, from, hh, dh.value);
        }
    }
    Grads g;
    g.h0 = dh.all();
    if (kind == LSTM) g.c0 = dc.all();
    below.reset();
    g.x = at::mm(inputs, w.ih);
    g.w.ih = at::mm(inputs.t(), x);
    g.w.hh = at::mm(products.t(), before.defined() ? before : befores(made.y, h0, steps));
    if (w.b_ih.defined()) {
        g.w.b_ih = inputs.sum(0);
        g.w.b_hh = kind == GRU ? products.sum(0) : g.w.b_ih;
    }
    if (hr.defined()) g.w.hr = at::mm(states.t(), made.gates.narrow(1, 3 * n, n).mul(made.cells.tanh()));
    return g;
}

/* One direction of one layer. */
struct Layer : torch::autograd::Function<Layer> {
    static constexpr size_t INPUTS = 8;

    static variable_list forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &h0,
                                 const std::optional<at::Tensor> &c0, const at::Tensor &ih, const at::Tensor &hh,
                                 const std::optional<at::Tensor> &b_ih, const std::optional<at::Tensor> &b_hh,
                                 const std::optional<at::Tensor> &hr, int64_t kind, std::vector<int64_t> rows,
                                 bool reverse)
    {
        const auto of = [](const std::optional<at::Tensor> &t) { return t.value_or(at::Tensor()); };
        const variable_list given = {x, h0, of(c0), ih, hh, of(b_ih), of(b_hh), of(hr)};
        const Made made = compute((Kind)kind, x, steps_of(rows, reverse), h0, of(c0), weights(given));
        if (std::any_of(given.begin(), given.end(),
                        [](const at::Tensor &t) { return t.defined() && t.requires_grad(); })) {
            variable_list kept = given;
            for (const at::Tensor &t : {made.y, made.gates, made.cells, made.inner})
                kept.push_back(t);
            ctx->save_for_backward(kept);
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
        const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
        const auto saved = ctx->get_saved_variables();
        const Kind kind = (Kind)ctx->saved_data["kind"].toInt();
        const Steps steps = steps_of(ctx->saved_data["rows"].toIntVector(), ctx->saved_data["reverse"].toBool());
        const Weights w = weights(saved);
        variable_list found(INPUTS + 3);
        const at::Tensor gc = above.size() > 2 ? above[2] : at::Tensor();
        if (!above[0].defined() && !above[1].defined() && !gc.defined()) return found;
        const auto wanted = [&](size_t i) { return saved[i].defined() && saved[i].requires_grad(); };
        if (at::GradMode::is_enabled()) { /* a gradient that will be differentiated */
            const variable_list given(saved.begin(), saved.begin() + INPUTS);
            const variable_list grads = differentiable(given, above, [&](const variable_list &own) {
                const Result made = composed(kind, own[0], steps, own[1], own[2], weights(own));
                return variable_list{made.y, made.h, made.c};
            });
            std::copy(grads.begin(), grads.end(), found.begin());
            return found;
        }
        Made made;
        made.y = saved[INPUTS], made.gates = saved[INPUTS + 1], made.cells = saved[INPUTS + 2];
        made.inner = saved[INPUTS + 3];
        const Grads g = differentiate(kind, made, steps, saved[0], saved[1], saved[2], w, above[0], above[1], gc);
        const at::Tensor all[INPUTS] = {g.x, g.h0, g.c0, g.w.ih, g.w.hh, g.w.b_ih, g.w.b_hh, g.w.hr};
        for (size_t i = 0; i < INPUTS; i++)
            if (wanted(i)) found[i] = all[i];
        return found;
    }

  private:
    static Weights weights(const variable_list &given) { return {given[3], given[4], given[5], given[6], given[7]}; }
};

} // namespace

Result direction(Kind kind, const at::Tensor &x, at::IntArrayRef rows, const at::Tensor &h0, const at::Tensor &c0,
                 const Weights &w, bool reverse)
{
    const auto maybe = [](const at::Tensor &t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
    const variable_list found = Layer::apply(x, h0, maybe(c0), w.ih, w.hh, maybe(w.b_ih), maybe(w.b_hh), maybe(w.hr),
                                             (int64_t)kind, rows.vec(), reverse);
    return {found[0], found[1], kind == LSTM ? found[2] : at::Tensor()};
}

} // namespace tlrt
