#include "matmul.h"

#include <iterator>

#include "quantizer.h"

namespace chaski {

namespace {

// Number of panels of a matrix that are read from its file at once: enough work for a kernel, and few enough
// to stay in a core's own cache.
std::int64_t panels_at_once(const OwnedMatrix& weight) {
    constexpr std::int64_t kBytes = 256 << 10, kMost = 8;
    const Matrix& m = weight.matrix;
    const std::int64_t interleaved = interleaved_panels(m.type);
    const std::int64_t fitting = kBytes / panel_bytes(m.type, m.k) / interleaved * interleaved;
    return std::clamp(fitting, interleaved, kMost);
}

// A piece of a stream while a thread computes some of its panels.
class TakenPiece {
   public:
    // Of the piece that contains panel `begin`: the panels from there to `end`.
    TakenPiece(const Origin& origin, std::int64_t begin, std::int64_t end)
        : stream_(*origin.stream),
          number_(origin.first_piece + begin / origin.piece_panels),
          panels_(end - begin),
          rows_(stream_.take(number_)) {
        if (rows_ != nullptr) rows_ += begin % origin.piece_panels * kLanes * origin.stride;
    }
    ~TakenPiece() {
        if (rows_ != nullptr) stream_.release(number_, panels_);
    }
    TakenPiece(const TakenPiece&) = delete;
    TakenPiece& operator=(const TakenPiece&) = delete;

    const std::uint8_t* rows() const { return rows_; }

   private:
    WeightStream& stream_;
    const std::int64_t number_, panels_;
    const std::uint8_t* rows_;
};

// Room for panels in the layout of the file, and packed.
struct Reading {
    std::uint8_t* rows;
    std::uint8_t* panels;

    Reading(const OwnedMatrix& weight, std::int64_t count, std::byte* scratch)
        : rows(reinterpret_cast<std::uint8_t*>(scratch)),
          panels(rows + align_up(stored_bytes(weight, count))) {}

    static std::size_t bytes(const OwnedMatrix& weight, std::int64_t count) {
        const Matrix& m = weight.matrix;
        return align_up(stored_bytes(weight, count)) + align_up(matrix_bytes(m.type, kLanes * count, m.k));
    }
};

std::size_t kernel_bytes(const Kernels& kernels, const Matrix& m, std::int64_t n) {
    return align_up(static_cast<std::size_t>(kernels.matmul_scratch_bytes(m, n)));
}

}  // namespace

std::size_t Multiplier::scratch_bytes(const OwnedMatrix& weight, std::int64_t n) const {
    return scratch_bytes(weight.matrix, n) + Reading::bytes(weight, panels_at_once(weight));
}

std::size_t Multiplier::scratch_bytes(const Matrix& m, std::int64_t n) const {
    return kernel_bytes(kernels_, m, n);
}

void Multiplier::multiply(const Matrix& m, std::int64_t panel_begin, std::int64_t panel_end,
                          const Activations& x, std::int64_t n, const Output& out, std::byte* scratch,
                          std::optional<VariantPicks::Turn> turn) const {
    if (!is_quantized(m.type)) {
        return kernels_.matmul(m, panel_begin, panel_end, x, n, out, scratch, kManyVariants[0]);
    }
    const VariantPicks::Trial trial = picks_->trial(m.type, n, turn);
    kernels_.matmul(m, panel_begin, panel_end, x, n, out, scratch, trial.variant);
    trial.finish((panel_end - panel_begin) * panel_bytes(m.type, m.k) * n);
}

void Multiplier::operator()(const OwnedMatrix& weight, std::int64_t panel_begin, std::int64_t panel_end,
                            const Activations& x, std::int64_t n, const Output& out,
                            std::byte* scratch) const {
    if (weight.is_laid_out())
        return multiply(weight.matrix, panel_begin, panel_end, x, n, out, scratch, turn_);
    const Origin& origin = *weight.origin;
    if (origin.stream == nullptr) {
        multiply_stored(weight, panel_begin, panel_end, nullptr, x, n, out, scratch);
        return;
    }
    for (std::int64_t begin = panel_begin, end; begin < panel_end; begin = end) {
        end = std::min((begin / origin.piece_panels + 1) * origin.piece_panels, panel_end);
        const TakenPiece piece(origin, begin, end);
        if (!multiply_stored(weight, begin, end, piece.rows(), x, n, out, scratch)) return;
    }
}

bool Multiplier::multiply_stored(const OwnedMatrix& weight, std::int64_t panel_begin, std::int64_t panel_end,
                                 const std::uint8_t* rows, const Activations& x, std::int64_t n,
                                 const Output& out, std::byte* scratch) const {
    const Matrix& m = weight.matrix;
    const std::int64_t step = panels_at_once(weight);
    const Reading room(weight, step, scratch + kernel_bytes(kernels_, m, n));
    for (std::int64_t begin = panel_begin; begin < panel_end; begin += step) {
        const std::int64_t end = std::min(begin + step, panel_end), row = kLanes * begin;
        const std::uint8_t* taken =
            rows == nullptr ? nullptr : rows + (begin - panel_begin) * kLanes * weight.origin->stride;
        if (!read_panels(kernels_, weight, begin, end, room.rows, room.panels, taken)) return false;
        const Matrix part{m.type, std::min(kLanes * end, m.rows) - row, m.k, room.panels};
        const Output behind{out.y + row, out.y_stride, out.bias == nullptr ? nullptr : out.bias + row,
                            out.residual == nullptr ? nullptr : out.residual + row};
        multiply(part, 0, end - begin, x, n, behind, scratch, std::nullopt);
    }
    return true;
}

void MatmulStep::multiply(const Sizes& sizes, std::int64_t begin, std::int64_t end,
                          std::span<const Stretch> later, std::byte* scratch) const {
    const std::int64_t n = sizes[dim_];
    Output out = out_;
    if (multiply_.leaves_memory_idle(n)) {
        out.later = later.data();
        out.num_later = std::ssize(later);
    } else {
        for (const Stretch& stretch : later) {
            for (std::int64_t at = 0; at < stretch.bytes; at += 64) {
                __builtin_prefetch(static_cast<const std::byte*>(stretch.place) + at, 0, 2);
            }
        }
    }
    multiply_(weight_, begin, end, x_, n, out, scratch);
}

std::span<const std::byte> MatmulStep::weights() const {
    const Matrix& m = weight_.matrix;
    if (!weight_.is_laid_out()) return {};
    return std::as_bytes(std::span(m.panels, static_cast<std::size_t>(matrix_bytes(m.type, m.rows, m.k))));
}

namespace {

// Places of the parts of `count` activations in one buffer.
struct RoomOfRows {
    std::size_t scales = 0, sums = 0, supers = 0, bytes;

    RoomOfRows(const Activations& x, std::int64_t count) {
        const auto elements = static_cast<std::size_t>(count);
        if (x.values == nullptr) {
            bytes = align_up(elements * sizeof(float));
            return;
        }
        scales = align_up(elements);
        sums = scales + align_up(elements / 32 * sizeof(float));
        supers = sums + align_up(elements / 16 * sizeof(std::int16_t));
        bytes = supers + (x.supers == nullptr ? 0 : align_up(elements / kSuperElements * sizeof(SuperScale)));
    }
};

}  // namespace

Activations HeadMatmulStep::rows_of(std::int64_t head, std::int64_t token, std::int64_t count,
                                    std::byte* room) const {
    const std::int64_t k = heads_[0].matrix.k, width = std::ssize(heads_) * k;
    const auto row = [&](std::int64_t i) { return behind(x_, (token + i) * width + head * k); };
    if (count == 1) return row(0);
    const RoomOfRows places(x_, count * k);
    if (x_.values == nullptr) {
        auto* floats = reinterpret_cast<float*>(room);
        for (std::int64_t i = 0; i < count; ++i) {
            std::memcpy(floats + i * k, row(i).floats, k * sizeof(float));
        }
        return {nullptr, nullptr, nullptr, floats};
    }
    const Activations rows{
        reinterpret_cast<std::int8_t*>(room), reinterpret_cast<float*>(room + places.scales),
        reinterpret_cast<std::int16_t*>(room + places.sums), nullptr,
        x_.supers == nullptr ? nullptr : reinterpret_cast<SuperScale*>(room + places.supers)};
    for (std::int64_t i = 0; i < count; ++i) copy_activations(row(i), k, behind(rows, i * k));
    return rows;
}

void HeadMatmulStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const std::int64_t rows = heads_[0].matrix.rows, width = std::ssize(heads_) * rows, n = sizes[dim_];
    std::byte* own = scratch + RoomOfRows(x_, most_ * heads_[0].matrix.k).bytes;
    while (begin < end) {
        const std::int64_t head = begin / slabs_, stop = std::min(end, (head + 1) * slabs_);
        const std::int64_t panel_begin = (begin - head * slabs_) * kSlab;
        const std::int64_t panel_end = std::min((stop - head * slabs_) * kSlab, num_panels(rows));
        for (std::int64_t token = 0; token < n; token += most_) {
            const std::int64_t count = std::min(most_, n - token);
            const Output out{y_ + token * width + head * rows, width, nullptr, nullptr};
            multiply_(heads_[head], panel_begin, panel_end, rows_of(head, token, count, scratch), count, out,
                      own);
        }
        begin = stop;
    }
}

std::size_t HeadMatmulStep::scratch_bytes() const {
    return RoomOfRows(x_, most_ * heads_[0].matrix.k).bytes + multiply_.scratch_bytes(heads_[0], most_);
}

void EmbeddingStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const Matrix& m = table_.matrix;
    const Reading room(table_, 1, scratch);
    for (std::int64_t i = begin; i < end; ++i) {
        float* y = y_ + i * m.k;
        if (table_.is_laid_out()) {
            kernels_.unpack_row(m, ids_[i], y);
            continue;
        }
        const std::int64_t panel = ids_[i] / kLanes;
        if (!read_panels(kernels_, table_, panel, panel + 1, room.rows, room.panels)) return;
        kernels_.unpack_row({m.type, kLanes, m.k, room.panels}, ids_[i] % kLanes, y);
    }
}

std::size_t EmbeddingStep::scratch_bytes() const { return Reading::bytes(table_, 1); }

}  // namespace chaski
