// Thread pools, weights and plans for Python. Every offset and size is checked here, once.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "../steps/attention.h"
#include "../steps/elementwise.h"
#include "../steps/experts.h"
#include "../steps/largest.h"
#include "../steps/matmul.h"
#include "../steps/short_conv.h"
#include "isa.h"
#include "storage.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Ints = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;
using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Vector = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

void require(bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument(what);
}

// Memory of all weights of a model, and the matrices and vectors that lie in it.
class Weights {
   public:
    explicit Weights(std::size_t bytes) : memory_(std::make_shared<Region>(bytes)) {}

    OwnedMatrix matrix(std::size_t offset, int type, std::int64_t rows, std::int64_t k) const {
        auto dtype = static_cast<DType>(type);
        const BlockFormat* format = find_format(dtype);
        require(format != nullptr, "matrix: type " + std::to_string(type) + " has no kernels");
        require(rows > 0 && k > 0 && k % format->elements == 0,
                "matrix: " + std::to_string(rows) + " x " + std::to_string(k) + " does not fit blocks of " +
                    std::to_string(format->elements));
        auto* panels = place(offset, static_cast<std::size_t>(matrix_bytes(dtype, rows, k)));
        return {{dtype, rows, k, reinterpret_cast<const std::uint8_t*>(panels)}, memory_};
    }

    std::byte* place(std::size_t offset, std::size_t bytes) const {
        require(offset % kAlignment == 0 && offset <= memory_->size() && bytes <= memory_->size() - offset,
                "weights: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                    " are outside " + std::to_string(memory_->size()));
        return memory_->data() + offset;
    }

    const std::shared_ptr<Region>& memory() const { return memory_; }

   private:
    std::shared_ptr<Region> memory_;
};

// Builds a plan: arena offsets in, typed pointers and steps out. Activations are float32 rows [row][width].
class PlanBuilder {
   public:
    PlanBuilder(std::shared_ptr<ThreadPool> pool, const std::string& isa, std::size_t arena_bytes,
                std::vector<std::string> dims, std::vector<std::int64_t> maxima)
        : kernels_(kernels_of(isa)),
          ops_(ops_of(isa)),
          plan_(std::make_shared<Plan>(std::move(pool), arena_bytes, std::move(dims), std::move(maxima))) {}

    // Views of the arena that keep the plan alive.
    Ints ints(nb::handle self, std::size_t offset, std::size_t count) {
        return Ints(plan_->buffer<std::int32_t>(offset, count), {count}, self);
    }
    Floats floats(nb::handle self, std::size_t offset, std::size_t rows, std::size_t width) {
        return Floats(plan_->buffer<float>(offset, rows * width), {rows, width}, self);
    }

    void check_indices(const std::string& name, int dim, std::size_t indices, std::int64_t limit,
                       int limit_dim) {
        require(limit_dim < dims(), "plan: dimension out of range");
        add(std::make_unique<IndexCheckStep>(name, dim, in<std::int32_t>(indices, dim, 1),
                                             Extent{limit, limit_dim}),
            false);
    }

    int tiles(int tokens, int history, std::size_t spans, std::int64_t group, bool is_plain) {
        require(group > 0 && history >= 0 && history < dims(), "tiles: bad dimension or group");
        tiles_.push_back(std::make_shared<Tiles>());
        add(std::make_unique<TileStep>(tokens, history, in<Span>(spans, tokens, 1), maximum(tokens),
                                       tokens_per_tile(group, is_plain), tiles_.back()),
            false);
        return static_cast<int>(tiles_.size()) - 1;
    }

    void embedding(int dim, const OwnedMatrix& table, std::size_t ids, std::size_t y, bool barrier) {
        add(std::make_unique<EmbeddingStep>(kernels_, dim, table, in<std::int32_t>(ids, dim, 1),
                                            in<float>(y, dim, table.matrix.k)),
            barrier);
    }

    void rows(int dim, int source_dim, std::int64_t width, std::size_t x, std::size_t indices, std::size_t y,
              bool barrier) {
        add(std::make_unique<RowsStep>(dim, width, in<float>(x, source_dim, width),
                                       in<std::int32_t>(indices, dim, 1), in<float>(y, dim, width)),
            barrier);
    }

    // `weight` is the place of a vector of the weights, or -1 for 1.
    void rms_norm(int dim, const Weights* weights, std::int64_t weight, std::int64_t heads, std::int64_t size,
                  float eps, std::size_t x, std::size_t y, std::int64_t quantized, bool barrier) {
        const float* w = vector(weights, weight, size);
        norm(dim, heads, size, x, y, quantized, barrier,
             [&ops = ops_, w, eps, size](const float* row, float* result) {
                 ops.rms_norm(row, w, eps, size, result);
             });
    }

    void layer_norm(int dim, const Weights* weights, std::int64_t weight, std::int64_t bias,
                    std::int64_t heads, std::int64_t size, float eps, std::size_t x, std::size_t y,
                    std::int64_t quantized, bool barrier) {
        const float* w = vector(weights, weight, size);
        const float* b = vector(weights, bias, size);
        require(w != nullptr && b != nullptr, "layer_norm: weight or bias is missing");
        norm(dim, heads, size, x, y, quantized, barrier,
             [&ops = ops_, w, b, eps, size](const float* row, float* result) {
                 ops.layer_norm(row, w, b, eps, size, result);
             });
    }

    void swiglu(int dim, std::int64_t width, std::size_t gate, std::size_t up, std::size_t y,
                std::int64_t quantized, bool barrier) {
        map2(dim, width, gate, up, y, quantized, barrier, ops_.swiglu);
    }
    void geglu(int dim, std::int64_t width, std::size_t gate, std::size_t up, std::size_t y,
               std::int64_t quantized, bool barrier) {
        map2(dim, width, gate, up, y, quantized, barrier, ops_.geglu);
    }
    void clamped_swiglu(int dim, std::int64_t width, float alpha, float limit, std::size_t gate,
                        std::size_t up, std::size_t y, std::int64_t quantized, bool barrier) {
        map2(dim, width, gate, up, y, quantized, barrier,
             [&ops = ops_, alpha, limit](const float* g, const float* u, std::int64_t count, float* result) {
                 ops.clamped_swiglu(g, u, alpha, limit, count, result);
             });
    }
    void add_rows(int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y, bool barrier) {
        map2(dim, width, a, b, y, -1, barrier, ops_.add);
    }

    void multiply(int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y,
                  std::int64_t quantized, bool barrier) {
        map2(dim, width, a, b, y, quantized, barrier, ops_.multiply);
    }
    // Adds a vector of the weights to every row.
    void add_vector(int dim, std::int64_t width, const Weights* weights, std::int64_t vector_at,
                    std::size_t x, std::size_t y, bool barrier) {
        const float* v = vector(weights, vector_at, width);
        require(v != nullptr, "add_vector: no vector");
        norm(dim, 1, width, x, y, -1, barrier,
             [&ops = ops_, v, width](const float* row, float* result) { ops.add(row, v, width, result); });
    }
    void columns(int dim, std::int64_t source_width, std::int64_t first, std::int64_t width, std::size_t x,
                 std::size_t y, bool barrier) {
        require(first >= 0 && first + width <= source_width, "columns: out of range");
        add(std::make_unique<ColumnsStep>(dim, source_width, first, width, in<float>(x, dim, source_width),
                                          in<float>(y, dim, width)),
            barrier);
    }

    void put_rows(int dim, int target_dim, std::int64_t width, std::size_t x, std::size_t places,
                  std::size_t y, bool barrier) {
        add(std::make_unique<PutRowsStep>(dim, width, in<float>(x, dim, width),
                                          in<std::int32_t>(places, dim, 1), in<float>(y, target_dim, width)),
            barrier);
    }
    void unfold(int dim, int source_dim, std::int64_t width, std::int64_t count, std::size_t x, std::size_t y,
                bool barrier) {
        require(count > 0 && source_dim >= 0 && source_dim < dims(), "unfold: bad count or dimension");
        add(std::make_unique<UnfoldStep>(dim, source_dim, width, count, in<float>(x, source_dim, width),
                                         in<float>(y, dim, width * count)),
            barrier);
    }
    void average_rows(int dim, int source_dim, std::int64_t width, std::int64_t count, std::size_t x,
                      std::size_t y, bool barrier) {
        require(count > 0 && source_dim >= 0 && source_dim < dims(), "average_rows: bad count or dimension");
        add(std::make_unique<AverageRowsStep>(ops_, dim, source_dim, width, count,
                                              in<float>(x, source_dim, width), in<float>(y, dim, width)),
            barrier);
    }
    void product(int dim, std::int64_t depth, std::int64_t width, const Weights* weights, std::int64_t matrix,
                 std::size_t x, std::size_t y, bool barrier) {
        const float* m = vector(weights, matrix, depth * width);
        require(m != nullptr, "product: no matrix");
        add(std::make_unique<ProductStep>(ops_, dim, depth, width, m, in<float>(x, dim, depth),
                                          in<float>(y, dim, width)),
            barrier);
    }

    void put_columns(int dim, std::int64_t width, std::int64_t target_width, std::int64_t first,
                     std::int64_t stride, std::size_t x, std::size_t y, bool barrier) {
        require(width > 0 && first >= 0 && stride > 0 && first + (width - 1) * stride < target_width,
                "put_columns: out of range");
        add(std::make_unique<PutColumnsStep>(dim, width, target_width, first, stride,
                                             in<float>(x, dim, width), in<float>(y, dim, target_width)),
            barrier);
    }

    void gelu(int dim, std::int64_t width, std::size_t x, std::size_t y, std::int64_t quantized,
              bool barrier) {
        map1(dim, width, x, y, quantized, barrier, ops_.gelu);
    }
    void gelu_tanh(int dim, std::int64_t width, std::size_t x, std::size_t y, std::int64_t quantized,
                   bool barrier) {
        map1(dim, width, x, y, quantized, barrier, ops_.gelu_tanh);
    }
    void softcap(int dim, std::int64_t width, float cap, std::size_t x, std::size_t y, bool barrier) {
        map1(dim, width, x, y, -1, barrier,
             [&ops = ops_, cap](const float* from, std::int64_t count, float* result) {
                 ops.softcap(from, cap, count, result);
             });
    }
    void scale(int dim, std::int64_t width, float factor, std::size_t x, std::size_t y, bool barrier) {
        map1(dim, width, x, y, -1, barrier,
             [&ops = ops_, factor](const float* from, std::int64_t count, float* result) {
                 ops.scale(from, factor, count, result);
             });
    }
    void times(int dim, std::int64_t width, std::size_t x, std::size_t factors, std::size_t y, bool barrier) {
        add(std::make_unique<TimesStep>(ops_, dim, width, in<float>(x, dim, width),
                                        in<float>(factors, dim, 1), in<float>(y, dim, width)),
            barrier);
    }
    void position_scale(int dim, std::size_t positions, std::int64_t length, double beta, std::int64_t offset,
                        std::size_t y, bool barrier) {
        require(length > 0 && offset >= 0, "position_scale: bad length or offset");
        add(std::make_unique<PositionScaleStep>(dim, in<std::int32_t>(positions, dim, 1), length, beta,
                                                offset, in<float>(y, dim, 1)),
            barrier);
    }

    void quantize(int dim, std::int64_t width, std::size_t x, std::int64_t quantized, bool barrier) {
        auto quantize = quantizer(dim, width, quantized);
        require(quantize.has_value(), "quantize: no target");
        add(std::make_unique<QuantizeStep>(dim, width, in<float>(x, dim, width), *quantize), barrier);
    }

    // `x` is the float buffer; a quantized matrix reads the int8 form at `quantized` instead.
    void matmul(int dim, const OwnedMatrix& weight, std::size_t x, std::int64_t quantized,
                const Weights* weights, std::int64_t bias, std::int64_t residual, std::size_t y,
                bool barrier) {
        const Matrix& m = weight.matrix;
        require(!is_quantized(m.type) || quantized >= 0,
                "matmul: a quantized matrix needs quantized activations");
        Activations activations = is_quantized(m.type)
                                      ? quantizer(dim, m.k, quantized)->out
                                      : Activations{nullptr, nullptr, nullptr, in<float>(x, dim, m.k)};
        Output out{in<float>(y, dim, m.rows), m.rows, vector(weights, bias, m.rows),
                   residual < 0 ? nullptr : in<float>(residual, dim, m.rows)};
        add(std::make_unique<MatmulStep>(kernels_, dim, maximum(dim), weight, activations, out), barrier);
    }

    void rope_table(int dim, std::size_t positions, std::vector<float> frequencies, float magnitude,
                    std::size_t table, bool barrier) {
        auto width = static_cast<std::int64_t>(2 * frequencies.size());
        add(std::make_unique<RopeTableStep>(dim, in<std::int32_t>(positions, dim, 1), std::move(frequencies),
                                            magnitude, in<float>(table, dim, width)),
            barrier);
    }

    void rope(int dim, std::int64_t heads, std::int64_t size, std::int64_t pairs, bool halves, std::size_t x,
              std::size_t table, std::size_t y, bool barrier) {
        require(heads > 0 && pairs >= 0 && 2 * pairs <= size, "rope: more pairs than the head has");
        add(std::make_unique<RopeStep>(ops_, dim, heads, size, pairs, halves, in<float>(x, dim, heads * size),
                                       in<float>(table, dim, 2 * pairs), in<float>(y, dim, heads * size)),
            barrier);
    }

    void store(int dim, std::size_t x, std::size_t cells, const OwnedStorage& target, bool barrier) {
        const KVStorage& storage = target.storage;
        hold(target.memory);
        add(std::make_unique<StoreStep>(ops_, dim, in<float>(x, dim, storage.heads * storage.size),
                                        in<std::int32_t>(cells, dim, 1), storage),
            barrier);
    }

    void rotate_cells(int dim, std::size_t cells, std::int64_t pairs, bool halves, std::size_t table,
                      const OwnedStorage& target, bool barrier) {
        require(pairs > 0 && 2 * pairs <= target.storage.size, "rotate_cells: more pairs than the head has");
        hold(target.memory);
        add(std::make_unique<RotateCellsStep>(ops_, dim, in<std::int32_t>(cells, dim, 1), pairs, halves,
                                              in<float>(table, dim, 2 * pairs), target.storage),
            barrier);
    }

    // `filter` is [tap][channel], and `states` has a head for each tap but the last.
    void short_conv(int dim, int segments_dim, std::size_t x, std::vector<float> filter, std::size_t segments,
                    const OwnedStorage& states, std::size_t y, bool barrier) {
        const KVStorage& s = states.storage;
        require(s.type == DType::F32 && !s.in_panels, "short_conv: states are float32 rows");
        require(static_cast<std::int64_t>(filter.size()) == (s.heads + 1) * s.size,
                "short_conv: the filter does not fit the states");
        hold(states.memory);
        add(std::make_unique<ShortConvStep>(dim, segments_dim, in<float>(x, dim, s.size), std::move(filter),
                                            in<Segment>(segments, segments_dim, 1), s,
                                            in<float>(y, dim, s.size)),
            barrier);
    }

    // `routes` is [row][2][count], `groups` [row][count] of Group; see experts.h.
    void route(int dim, std::int64_t experts, std::int64_t count, int gating, bool normalized, float scale,
               const Weights* weights, std::int64_t bias, std::size_t x, std::size_t y, bool barrier) {
        require(0 < count && count <= experts && 0 <= gating && gating <= 2, "route: bad count or gating");
        Routing routing{experts,    count, static_cast<Gating>(gating),
                        normalized, scale, vector(weights, bias, experts)};
        add(std::make_unique<RouteStep>(dim, routing, in<float>(x, dim, experts),
                                        in<float>(y, dim, 2 * count)),
            barrier);
    }

    void group(int dim, std::int64_t experts, std::int64_t count, std::size_t routes, std::size_t y,
               bool barrier) {
        require(experts > 0 && count > 0, "group: no experts");
        add(std::make_unique<GroupStep>(dim, experts, count, in<float>(routes, dim, 2 * count),
                                        in<Group>(y, dim, count)),
            barrier);
    }

    void dispatch(int dim, std::int64_t count, std::int64_t width, std::size_t x, std::int64_t routes,
                  std::size_t groups, std::size_t y, bool barrier) {
        add(std::make_unique<DispatchStep>(ops_, dim, count, width, in<float>(x, dim, width),
                                           routes < 0 ? nullptr : in<float>(routes, dim, 2 * count),
                                           in<Group>(groups, dim, count), in<float>(y, dim, count * width)),
            barrier);
    }

    void dispatch_quantized(int dim, std::int64_t count, std::int64_t width, std::int64_t x,
                            std::size_t groups, std::int64_t y, bool barrier) {
        require(x >= 0 && y >= 0, "dispatch_quantized: no source or target");
        add(std::make_unique<DispatchQuantizedStep>(dim, count, width, quantizer(dim, width, x)->out,
                                                    in<Group>(groups, dim, count),
                                                    quantizer(dim, count * width, y)->out),
            barrier);
    }

    void expert_matmul(int dim, std::int64_t count, const std::vector<OwnedMatrix>& experts,
                       const Weights* weights, std::int64_t bias, std::size_t x, std::int64_t quantized,
                       std::size_t groups, std::size_t y, bool barrier) {
        require(!experts.empty() && count > 0, "expert_matmul: no experts");
        const Matrix& m = experts[0].matrix;
        for (const OwnedMatrix& expert : experts) {
            const Matrix& other = expert.matrix;
            require(other.type == m.type && other.rows == m.rows && other.k == m.k,
                    "expert_matmul: experts of different shapes or types");
        }
        require(!is_quantized(m.type) || quantized >= 0,
                "expert_matmul: a quantized matrix needs quantized activations");
        Activations activations =
            is_quantized(m.type) ? quantizer(dim, count * m.k, quantized)->out
                                 : Activations{nullptr, nullptr, nullptr, in<float>(x, dim, count * m.k)};
        auto size = static_cast<std::int64_t>(experts.size());
        add(std::make_unique<ExpertMatmulStep>(
                kernels_, dim, maximum(dim), count, experts, vector(weights, bias, size * m.rows),
                activations, in<Group>(groups, dim, count), in<float>(y, dim, count * m.rows)),
            barrier);
    }

    void combine(int dim, std::int64_t count, std::int64_t width, std::size_t x, std::int64_t routes,
                 std::size_t groups, std::size_t y, bool barrier) {
        add(std::make_unique<CombineStep>(ops_, dim, count, width, in<float>(x, dim, count * width),
                                          routes < 0 ? nullptr : in<float>(routes, dim, 2 * count),
                                          in<Group>(groups, dim, count), in<float>(y, dim, width)),
            barrier);
    }

    // `maxima` has a float for every lane (see largest.h), `y` is [row][2][most].
    void lane_maxima(int dim, std::int64_t width, std::size_t x, std::size_t counts, std::size_t maxima,
                     bool barrier) {
        add(std::make_unique<MaximaStep>(ops_, dim, width, in<float>(x, dim, width),
                                         in<std::int32_t>(counts, dim, 1),
                                         in<float>(maxima, dim, Blocks(width).lanes())),
            barrier);
    }
    void largest(int dim, std::int64_t width, std::int64_t most, std::size_t x, std::size_t counts,
                 std::size_t maxima, std::size_t y, bool barrier) {
        require(0 < most && width <= 1 << 24, "largest: indices must be exact as float32");
        add(std::make_unique<LargestStep>(
                dim, width, most, in<float>(x, dim, width), in<std::int32_t>(counts, dim, 1),
                in<float>(maxima, dim, Blocks(width).lanes()), in<float>(y, dim, 2 * most)),
            barrier);
    }

    // `parts` is -1 where a batch is never split; `sinks` is the place of a vector of the weights, or -1.
    void attention(int dim, int history, std::int64_t heads, float scale, float cap, bool is_plain,
                   std::size_t q, const OwnedStorage& keys, const OwnedStorage& values, std::size_t cells,
                   std::size_t spans, int tiles, const Weights* weights, std::int64_t sinks,
                   std::int64_t parts, std::size_t y, bool barrier) {
        const KVStorage& k = keys.storage;
        const KVStorage& v = values.storage;
        require(heads > 0 && heads % k.heads == 0 && k.heads == v.heads && k.cells == v.cells,
                "attention: heads or cells of queries, keys and values do not fit");
        require(k.in_panels && !v.in_panels, "attention: keys lie in panels, and values in rows");
        require(!is_plain || !(is_quantized(k.type) || is_quantized(v.type)),
                "attention: the plain form reads plain numbers only");
        require(tiles >= 0 && tiles < static_cast<int>(tiles_.size()), "attention: no such tiles");
        hold(keys.memory);
        hold(values.memory);
        std::int64_t length = is_plain ? plain_attention_length(maximum(history)) : kAttentionChunk;
        Attention job{in<float>(q, dim, heads * k.size),
                      in<float>(y, dim, heads * v.size),
                      k,
                      v,
                      in<std::int32_t>(cells, history, 1),
                      in<Span>(spans, dim, 1),
                      vector(weights, sinks, heads),
                      heads,
                      scale,
                      cap,
                      is_plain,
                      length};
        std::int64_t size =
            parts < 0 ? 0 : attention_parts(heads, k.heads, v.size, maximum(history), plan_->threads());
        float* space = parts < 0 ? nullptr : plan_->buffer<float>(parts, size);
        add(std::make_unique<AttentionStep>(ops_, job, tiles_[tiles], tokens_per_tile(job.group(), is_plain),
                                            space, size, plan_->threads()),
            barrier);
    }

    void finish() { plan_->finish(); }
    void touch() { plan_->touch(); }

    void launch(const std::vector<std::int64_t>& sizes) {
        nb::gil_scoped_release release;
        plan_->launch(sizes);
    }
    void wait() {
        nb::gil_scoped_release release;
        plan_->wait();
    }

    std::size_t bytes() const { return plan_->bytes(); }

   private:
    template <class F>
    void norm(int dim, std::int64_t heads, std::int64_t size, std::size_t x, std::size_t y,
              std::int64_t quantized, bool barrier, F normalize) {
        require(heads > 0, "norm: no heads");
        std::int64_t width = heads * size;
        add(std::make_unique<NormStep<F>>(dim, heads, size, in<float>(x, dim, width),
                                          in<float>(y, dim, width), quantizer(dim, width, quantized),
                                          normalize),
            barrier);
    }

    // f(x, count, y), or f(a, b, count, y), for all elements of a row's `width`.
    template <class F>
    void map1(int dim, std::int64_t width, std::size_t x, std::size_t y, std::int64_t quantized, bool barrier,
              F f) {
        const float* from = in<float>(x, dim, width);
        float* to = in<float>(y, dim, width);
        map(dim, width, to, quantized, barrier,
            [=](std::int64_t at, std::int64_t count) { f(from + at, count, to + at); });
    }
    template <class F>
    void map2(int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y,
              std::int64_t quantized, bool barrier, F f) {
        const float* left = in<float>(a, dim, width);
        const float* right = in<float>(b, dim, width);
        float* to = in<float>(y, dim, width);
        map(dim, width, to, quantized, barrier,
            [=](std::int64_t at, std::int64_t count) { f(left + at, right + at, count, to + at); });
    }
    template <class F>
    void map(int dim, std::int64_t width, float* y, std::int64_t quantized, bool barrier, F f) {
        add(std::make_unique<MapStep<F>>(dim, width, y, quantizer(dim, width, quantized), f), barrier);
    }

    int dims() const { return static_cast<int>(plan_->maxima().size()); }

    std::int64_t maximum(int dim) const {
        require(dim >= 0 && dim < dims(), "plan: dimension " + std::to_string(dim) + " is not declared");
        return plan_->maxima()[dim];
    }

    // The buffer at an offset, large enough for the largest run.
    template <class T>
    T* in(std::size_t offset, int dim, std::int64_t width) {
        require(width > 0, "plan: a row must have elements");
        return plan_->buffer<T>(offset, static_cast<std::size_t>(maximum(dim) * width));
    }

    // A vector of the weights, or null where the place is -1.
    const float* vector(const Weights* weights, std::int64_t place, std::int64_t size) {
        if (place < 0) return nullptr;
        require(weights != nullptr, "plan: a vector without weights");
        hold(weights->memory());
        return reinterpret_cast<const float*>(weights->place(place, size * sizeof(float)));
    }

    // Quantized rows lie as [int8 values][float scales][int16 sums], each part 64-byte aligned.
    std::optional<Quantizer> quantizer(int dim, std::int64_t width, std::int64_t offset) {
        if (offset < 0) return std::nullopt;
        require(width % 32 == 0,
                "quantized activations come in blocks of 32, not in rows of " + std::to_string(width));
        std::size_t count = static_cast<std::size_t>(maximum(dim) * width);
        std::size_t scales = offset + align_up(count);
        std::size_t sums = scales + align_up(count / 32 * sizeof(float));
        Activations out{plan_->buffer<std::int8_t>(offset, count), plan_->buffer<float>(scales, count / 32),
                        plan_->buffer<std::int16_t>(sums, count / 16), nullptr};
        return Quantizer{kernels_, out};
    }

    void hold(std::shared_ptr<Region> memory) { held_.push_back(std::move(memory)); }
    void add(std::unique_ptr<Step> step, bool barrier) { plan_->add(std::move(step), barrier); }

    const Kernels& kernels_;
    const Ops& ops_;
    std::vector<std::shared_ptr<Region>> held_;
    std::vector<std::shared_ptr<Tiles>> tiles_;
    std::shared_ptr<Plan> plan_;
};

void load(ThreadPool& pool, const std::string& isa,
          const std::vector<std::tuple<int, std::int64_t, OwnedMatrix>>& list) {
    std::vector<MatrixSource> sources;
    for (const auto& [descriptor, offset, owned] : list) {
        sources.push_back({descriptor, offset, owned.matrix, const_cast<std::uint8_t*>(owned.matrix.panels)});
    }
    nb::gil_scoped_release release;
    load_matrices(pool, kernels_of(isa), sources);
}

}  // namespace

void bind_plan(nb::module_& m) {
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &ThreadPool::threads);

    nb::class_<OwnedMatrix>(m, "WeightMatrix")
        .def_prop_ro("type", [](const OwnedMatrix& w) { return static_cast<int>(w.matrix.type); })
        .def_prop_ro("rows", [](const OwnedMatrix& w) { return w.matrix.rows; })
        .def_prop_ro("columns", [](const OwnedMatrix& w) { return w.matrix.k; });

    nb::class_<Weights>(m, "Weights")
        .def(nb::init<std::size_t>(), "bytes"_a)
        .def("matrix", &Weights::matrix, "offset"_a, "type"_a, "rows"_a, "columns"_a)
        .def(
            "vector",
            [](nb::handle self, std::size_t offset, std::size_t size) {
                auto* data =
                    reinterpret_cast<float*>(nb::cast<Weights&>(self).place(offset, size * sizeof(float)));
                return Vector(data, {size}, self);
            },
            "offset"_a, "size"_a);

    m.def(
        "matrix_bytes",
        [](int type, std::int64_t rows, std::int64_t k) {
            require(find_format(static_cast<DType>(type)) != nullptr,
                    "type " + std::to_string(type) + " has no kernels");
            return matrix_bytes(static_cast<DType>(type), rows, k);
        },
        "type"_a, "rows"_a, "columns"_a);
    m.def(
        "attention_parts_bytes",
        [](std::int64_t heads, std::int64_t kv_heads, std::int64_t value_size, std::int64_t history,
           int threads) {
            return attention_parts(heads, kv_heads, value_size, history, threads) * sizeof(float);
        },
        "heads"_a, "kv_heads"_a, "value_size"_a, "history"_a, "threads"_a);
    m.def("is_quantized", [](int type) { return is_quantized(static_cast<DType>(type)); }, "type"_a);
    m.def("matrix_types", [] {
        std::vector<int> types;
        for (const BlockFormat& format : kFormats) types.push_back(static_cast<int>(format.type));
        return types;
    });
    m.def("num_lanes", [](std::int64_t width) { return Blocks(width).lanes(); }, "width"_a);
    m.def("load_matrices", &load, "pool"_a, "isa"_a, "sources"_a);

    nb::class_<PlanBuilder>(m, "Plan")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::string&, std::size_t, std::vector<std::string>,
                      std::vector<std::int64_t>>(),
             "pool"_a, "isa"_a, "arena_bytes"_a, "dims"_a, "maxima"_a)
        .def("ints", [](nb::handle self, std::size_t offset,
                        std::size_t count) { return nb::cast<PlanBuilder&>(self).ints(self, offset, count); })
        .def("floats",
             [](nb::handle self, std::size_t offset, std::size_t rows, std::size_t width) {
                 return nb::cast<PlanBuilder&>(self).floats(self, offset, rows, width);
             })
        .def("check_indices", &PlanBuilder::check_indices, "name"_a, "dim"_a, "indices"_a, "limit"_a,
             "limit_dim"_a)
        .def("tiles", &PlanBuilder::tiles, "tokens"_a, "history"_a, "spans"_a, "group"_a, "is_plain"_a)
        .def("embedding", &PlanBuilder::embedding, "dim"_a, "table"_a, "ids"_a, "y"_a, "barrier"_a)
        .def("rows", &PlanBuilder::rows, "dim"_a, "source_dim"_a, "width"_a, "x"_a, "indices"_a, "y"_a,
             "barrier"_a)
        .def("rms_norm", &PlanBuilder::rms_norm, "dim"_a, "weights"_a.none(), "weight"_a, "heads"_a, "size"_a,
             "eps"_a, "x"_a, "y"_a, "quantized"_a, "barrier"_a)
        .def("layer_norm", &PlanBuilder::layer_norm, "dim"_a, "weights"_a.none(), "weight"_a, "bias"_a,
             "heads"_a, "size"_a, "eps"_a, "x"_a, "y"_a, "quantized"_a, "barrier"_a)
        .def("swiglu", &PlanBuilder::swiglu, "dim"_a, "width"_a, "gate"_a, "up"_a, "y"_a, "quantized"_a,
             "barrier"_a)
        .def("geglu", &PlanBuilder::geglu, "dim"_a, "width"_a, "gate"_a, "up"_a, "y"_a, "quantized"_a,
             "barrier"_a)
        .def("clamped_swiglu", &PlanBuilder::clamped_swiglu, "dim"_a, "width"_a, "alpha"_a, "limit"_a,
             "gate"_a, "up"_a, "y"_a, "quantized"_a, "barrier"_a)
        .def("add", &PlanBuilder::add_rows, "dim"_a, "width"_a, "a"_a, "b"_a, "y"_a, "barrier"_a)
        .def("multiply", &PlanBuilder::multiply, "dim"_a, "width"_a, "a"_a, "b"_a, "y"_a, "quantized"_a,
             "barrier"_a)
        .def("add_vector", &PlanBuilder::add_vector, "dim"_a, "width"_a, "weights"_a.none(), "vector"_a,
             "x"_a, "y"_a, "barrier"_a)
        .def("columns", &PlanBuilder::columns, "dim"_a, "source_width"_a, "first"_a, "width"_a, "x"_a, "y"_a,
             "barrier"_a)
        .def("put_columns", &PlanBuilder::put_columns, "dim"_a, "width"_a, "target_width"_a, "first"_a,
             "stride"_a, "x"_a, "y"_a, "barrier"_a)
        .def("gelu", &PlanBuilder::gelu, "dim"_a, "width"_a, "x"_a, "y"_a, "quantized"_a, "barrier"_a)
        .def("gelu_tanh", &PlanBuilder::gelu_tanh, "dim"_a, "width"_a, "x"_a, "y"_a, "quantized"_a,
             "barrier"_a)
        .def("put_rows", &PlanBuilder::put_rows, "dim"_a, "target_dim"_a, "width"_a, "x"_a, "places"_a, "y"_a,
             "barrier"_a)
        .def("unfold", &PlanBuilder::unfold, "dim"_a, "source_dim"_a, "width"_a, "count"_a, "x"_a, "y"_a,
             "barrier"_a)
        .def("average_rows", &PlanBuilder::average_rows, "dim"_a, "source_dim"_a, "width"_a, "count"_a, "x"_a,
             "y"_a, "barrier"_a)
        .def("product", &PlanBuilder::product, "dim"_a, "depth"_a, "width"_a, "weights"_a.none(), "matrix"_a,
             "x"_a, "y"_a, "barrier"_a)
        .def("softcap", &PlanBuilder::softcap, "dim"_a, "width"_a, "cap"_a, "x"_a, "y"_a, "barrier"_a)
        .def("scale", &PlanBuilder::scale, "dim"_a, "width"_a, "factor"_a, "x"_a, "y"_a, "barrier"_a)
        .def("times", &PlanBuilder::times, "dim"_a, "width"_a, "x"_a, "factors"_a, "y"_a, "barrier"_a)
        .def("position_scale", &PlanBuilder::position_scale, "dim"_a, "positions"_a, "length"_a, "beta"_a,
             "offset"_a, "y"_a, "barrier"_a)
        .def("quantize", &PlanBuilder::quantize, "dim"_a, "width"_a, "x"_a, "quantized"_a, "barrier"_a)
        .def("matmul", &PlanBuilder::matmul, "dim"_a, "weight"_a, "x"_a, "quantized"_a, "weights"_a.none(),
             "bias"_a, "residual"_a, "y"_a, "barrier"_a)
        .def("rope_table", &PlanBuilder::rope_table, "dim"_a, "positions"_a, "frequencies"_a, "magnitude"_a,
             "table"_a, "barrier"_a)
        .def("rope", &PlanBuilder::rope, "dim"_a, "heads"_a, "size"_a, "pairs"_a, "halves"_a, "x"_a,
             "table"_a, "y"_a, "barrier"_a)
        .def("store", &PlanBuilder::store, "dim"_a, "x"_a, "cells"_a, "target"_a, "barrier"_a)
        .def("rotate_cells", &PlanBuilder::rotate_cells, "dim"_a, "cells"_a, "pairs"_a, "halves"_a, "table"_a,
             "target"_a, "barrier"_a)
        .def("short_conv", &PlanBuilder::short_conv, "dim"_a, "segments_dim"_a, "x"_a, "filter"_a,
             "segments"_a, "states"_a, "y"_a, "barrier"_a)
        .def("route", &PlanBuilder::route, "dim"_a, "experts"_a, "count"_a, "gating"_a, "normalized"_a,
             "scale"_a, "weights"_a.none(), "bias"_a, "x"_a, "y"_a, "barrier"_a)
        .def("group", &PlanBuilder::group, "dim"_a, "experts"_a, "count"_a, "routes"_a, "y"_a, "barrier"_a)
        .def("dispatch", &PlanBuilder::dispatch, "dim"_a, "count"_a, "width"_a, "x"_a, "routes"_a, "groups"_a,
             "y"_a, "barrier"_a)
        .def("dispatch_quantized", &PlanBuilder::dispatch_quantized, "dim"_a, "count"_a, "width"_a, "x"_a,
             "groups"_a, "y"_a, "barrier"_a)
        .def("expert_matmul", &PlanBuilder::expert_matmul, "dim"_a, "count"_a, "experts"_a,
             "weights"_a.none(), "bias"_a, "x"_a, "quantized"_a, "groups"_a, "y"_a, "barrier"_a)
        .def("combine", &PlanBuilder::combine, "dim"_a, "count"_a, "width"_a, "x"_a, "routes"_a, "groups"_a,
             "y"_a, "barrier"_a)
        .def("lane_maxima", &PlanBuilder::lane_maxima, "dim"_a, "width"_a, "x"_a, "counts"_a, "maxima"_a,
             "barrier"_a)
        .def("largest", &PlanBuilder::largest, "dim"_a, "width"_a, "most"_a, "x"_a, "counts"_a, "maxima"_a,
             "y"_a, "barrier"_a)
        .def("attention", &PlanBuilder::attention, "dim"_a, "history"_a, "heads"_a, "scale"_a, "cap"_a,
             "is_plain"_a, "q"_a, "keys"_a, "values"_a, "cells"_a, "spans"_a, "tiles"_a, "weights"_a.none(),
             "sinks"_a, "parts"_a, "y"_a, "barrier"_a)
        .def("finish", &PlanBuilder::finish)
        .def("touch", &PlanBuilder::touch)
        .def("launch", &PlanBuilder::launch, "sizes"_a)
        .def("wait", &PlanBuilder::wait)
        .def_prop_ro("bytes", &PlanBuilder::bytes);
}

}  // namespace chaski
