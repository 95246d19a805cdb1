/* A recurrent layer in one direction: the inputs' products of all steps are one product, and a step is a product and a cell.
 *
 * A row of a step stands for a sequence. The steps of a layer have the numbers of rows that a packed sequence says, in the order
 * in which they are computed: falling, or rising where a layer runs backwards. */
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "recurrent.h"

namespace tlrt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
        const at::Tensor from = steps.of(inputs, t);
        at::Tensor product = at::mm(h.value, w.hh.t());
        if (kind == GRU && w.b_hh.defined()) product = product.add(w.b_hh);
        if (kind == LSTM) {
            c.resize(steps.rows[t]);
            const at::Tensor a = product.add(from), s = a.sigmoid(), g = a.narrow(1, 2 * n, n).tanh();
            c.value = s.narrow(1, n, n).mul(c.value).add(s.narrow(1, 0, n).mul(g));
            h.value = s.narrow(1, 3 * n, n).mul(c.value.tanh());
            if (w.hr.defined()) h.value = at::mm(h.value, w.hr.t());
        } else if (kind == GRU) {
            const at::Tensor rz = product.narrow(1, 0, 2 * n).add(from.narrow(1, 0, 2 * n)).sigmoid();
            const at::Tensor g =
                rz.narrow(1, 0, n).mul(product.narrow(1, 2 * n, n)).add(from.narrow(1, 2 * n, n)).tanh();
            h.value = h.value.sub(g).mul(rz.narrow(1, n, n)).add(g);
        } else {
            const at::Tensor a = product.add(from);
            h.value = kind == TANH ? a.tanh() : a.relu();
        }
        ys.push_back(h.value);
    }
    return {steps.joined(ys), h.all(), kind == LSTM ? c.all() : at::Tensor()};
}

/* ---- a layer of the library's cells ------------------------------------------------------------------------------------------ */

/* A step's rows of a tensor of all rows, to be written: where they do not begin with whole 16 bytes, through a tensor of their own. */
class Slot {
  public:
    Slot(const at::Tensor &all, const Steps &steps, size_t step)
    {
        if (!all.defined()) return;
        place = t = steps.of(all, step);
        if ((uintptr_t)t.const_data_ptr() % 16) t = fresh(all, place.sizes());
    }
    at::Tensor t;
    ~Slot()
    {
        if (!t.is_same(place)) place.copy_(t);
    }

  private:
    at::Tensor place;
};

/* While it lasts, views and new tensors pass by the block and by autograd, which otherwise cost more than a step's kernels. */
struct BelowBlock {
    c10::impl::ExcludeDispatchKeyGuard block{c10::DispatchKeySet({KEY, FRONT})};
    at::AutoDispatchBelowADInplaceOrView autograd;
};

/* y = x·w */
void multiply(torchlean_context *context, const at::Tensor &x, const at::Tensor &w, const at::Tensor &y)
{
    Buffer out(context, y);
    check(torchlean_cuda_buffer_matmul(Buffer(context, x), Buffer(context, w), u32(x.size(0)), u32(x.size(1)),
                                       u32(y.size(1)), out.out()));
}

void add(torchlean_context *context, const at::Tensor &a, const at::Tensor &b, const at::Tensor &y)
{
    Buffer out(context, y);
    check(torchlean_cuda_buffer_add(Buffer(context, a), Buffer(context, b), out.out()));
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
        const at::Tensor before = plain(h.value), from = plain(steps.of(inputs, t)), product = products.narrow(0, 0, b);
        multiply(context, before, hh, product);
        Slot y(made.y, steps, t);
        if (kind == LSTM) {
            c.resize(b);
            Slot gates(made.gates, steps, t), cell(made.cells, steps, t);
            const at::Tensor cell_before = plain(c.value), out = hr.defined() ? hidden.narrow(0, 0, b) : y.t;
            Buffer all_gates(context, gates.t), next(context, cell.t), found(context, out);
            check(torchlean_cuda_buffer_lstm_cell(Buffer(context, from), Buffer(context, product),
                                                  Buffer(context, cell_before), u32(b), u32(n), all_gates.out(),
                                                  next.out(), found.out()));
            c.value = cell.t;
            if (hr.defined()) multiply(context, out, hr, y.t);
        } else if (kind == GRU) {
            Slot gates(made.gates, steps, t), inner(made.inner, steps, t);
            Buffer all_gates(context, gates.t), kept(context, inner.t), found(context, y.t);
            check(torchlean_cuda_buffer_gru_cell(Buffer(context, from), Buffer(context, product), Buffer(context, b_hh),
                                                 Buffer(context, before), u32(b), u32(n), all_gates.out(), kept.out(),
                                                 found.out()));
        } else {
            const at::Tensor a = product.add(from);
            y.t.copy_(kind == TANH ? a.tanh() : a.relu());
        }
        h.value = y.t;
    }
    made.h = h.all().clone(); /* memory of its own */
    if (kind == LSTM) made.c = c.all().clone();
    return made;
}

/* The state before a step, by that after each, where all steps have the same rows. */
at::Tensor before_step(const at::Tensor &after, const at::Tensor &first, const Steps &steps, size_t step)
{
    return step == 0 ? first : steps.of(after, step - 1);
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
        parts.push_back(state.value);
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
    const at::Tensor hh = plain(w.hh), hr = w.hr.defined() ? plain(w.hr) : w.hr;
    const bool even = is_even(steps);
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
    torchlean_context *const context = context_of(x);
    std::optional<BelowBlock> below;
    if (kind <= GRU) below.emplace();
    for (size_t t = steps.rows.size(); t-- > 0;) {
        const int64_t b = steps.rows[t];
        dh.resize(b);
        at::Tensor d = plain(dh.value);
        if (gy.defined()) {
            const at::Tensor sum = fresh(d, d.sizes());
            add(context, d, plain(steps.of(gy, t)), sum);
            d = sum;
        }
        Slot from(inputs, steps, t);
        dh.value = fresh(d, {b, h0.size(1)});
        if (hr.defined()) {
            steps.of(states, t).copy_(d);
            const at::Tensor inside = fresh(d, {b, n});
            multiply(context, d, hr, inside);
            d = inside;
        }
        const auto step = [&](const at::Tensor &tensor) { return plain(steps.of(tensor, t)); };
        const auto step_before = [&](const at::Tensor &all, const at::Tensor &after, const at::Tensor &first) {
            return even ? plain(before_step(after, first, steps, t)) : step(all);
        };
        if (kind == LSTM) {
            dc.resize(b);
            const at::Tensor gates = step(made.gates), c = step_before(cells_before, made.cells, c0),
                             cell = step(made.cells), above = plain(dc.value), next = fresh(d, {b, n});
            Buffer gx(context, from.t), g_before(context, next);
            check(torchlean_cuda_buffer_lstm_cell_bwd(Buffer(context, gates), Buffer(context, c), Buffer(context, cell),
                                                      Buffer(context, above), Buffer(context, d), u32(b), u32(n),
                                                      gx.out(), nullptr, g_before.out()));
            dc.value = next;
            multiply(context, from.t, hh, dh.value);
        } else if (kind == GRU) {
            const at::Tensor gates = step(made.gates), inner = step(made.inner), h = step_before(before, made.y, h0),
                             kept = fresh(d, {b, n}), through = fresh(d, {b, n});
            Slot by_hidden(products, steps, t);
            Buffer gx(context, from.t), ga(context, by_hidden.t), g_kept(context, kept);
            check(torchlean_cuda_buffer_gru_cell_bwd(Buffer(context, gates), Buffer(context, inner), Buffer(context, h),
                                                     Buffer(context, d), u32(b), u32(n), gx.out(), ga.out(), nullptr,
                                                     g_kept.out()));
            multiply(context, by_hidden.t, hh, through);
            add(context, through, kept, dh.value);
        } else {
            const at::Tensor y = steps.of(made.y, t);
            from.t.copy_(kind == TANH ? at::tanh_backward(d, y) : at::threshold_backward(d, y, 0));
            multiply(context, from.t, hh, dh.value);
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
        const auto saved = ctx->get_saved_variables();
        const Kind kind = (Kind)ctx->saved_data["kind"].toInt();
        const Steps steps = steps_of(ctx->saved_data["rows"].toIntVector(), ctx->saved_data["reverse"].toBool());
        const Weights w = weights(saved);
        variable_list found(INPUTS + 3);
        const at::Tensor gc = above.size() > 2 ? above[2] : at::Tensor();
        if (!above[0].defined() && !above[1].defined() && !gc.defined()) return found;
        const auto wanted = [&](size_t i) { return saved[i].defined() && saved[i].requires_grad(); };
        if (at::GradMode::is_enabled()) { /* a gradient that will be differentiated */
            const Result made = composed(kind, saved[0], steps, saved[1], saved[2], w);
            variable_list outputs, cotangents, leaves;
            const at::Tensor of[] = {made.y, made.h, made.c};
            for (size_t i = 0; i < above.size(); i++)
                if (above[i].defined()) {
                    outputs.push_back(of[i]);
                    cotangents.push_back(above[i]);
                }
            for (size_t i = 0; i < INPUTS; i++)
                if (wanted(i)) leaves.push_back(saved[i]);
            const variable_list grads = torch::autograd::grad(outputs, leaves, cotangents, std::nullopt, true, true);
            for (size_t i = 0, next = 0; i < INPUTS; i++)
                if (wanted(i)) found[i] = grads[next++];
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
