// The memory of attention in addition to its inputs: the state of rows after part of their history, a
// thread's scratch memory, and the history that a tile sees.
#pragma once

#include <limits>

#include "attention_history.h"
#include "attention_integers.h"

namespace chaski::CHASKI_ISA {

inline constexpr std::size_t kLine = 64;
inline constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The state of each row after part of its history: the highest score, the sum of the weights relative to it,
// and the sum of the values with these weights. It is stored as part_floats consecutive floats.
struct Part {
    std::int64_t value_size;  // padded
    float* sums;              // [row][value size]
    float* maxima;            // [row]
    float* totals;            // [row]

    Part(float* floats, std::int64_t rows, std::int64_t size)
        : value_size(padded(size)),
          sums(floats),
          maxima(sums + rows * value_size),
          totals(maxima + padded(rows)) {}

    void clear(std::int64_t rows) {
        for (std::int64_t r = 0; r < rows; ++r) {
            maxima[r] = kHidden;
            totals[r] = 0.0f;
        }
        std::memset(sums, 0, rows * value_size * sizeof(float));
    }
};

// The parts of a thread's scratch memory for a tile of `rows`; the size of each is a multiple of 64 bytes.
struct Workspace {
    Activations queries;              // scaled; also quantized if keys are
    QuantizedRows quantized_queries;  // if keys are integers
    QuantizedRows quantized_weights;  // the weights of a block, if values are integers
    float* widened;                   // [64][the larger size of a row]
    std::byte* panels;                // of a block, if cells are scattered
    float* weights;                   // [row][stride]
    std::int64_t stride;
    float* part;  // of the chunk
    float* all;   // of all chunks so far
    std::size_t bytes;

    Workspace(const Attention& job, std::int64_t rows, std::byte* scratch) : bytes(0) {
        auto take = [&](std::int64_t count, std::size_t size) {
            std::byte* taken = scratch + bytes;
            bytes += (count * size + kLine - 1) / kLine * kLine;
            return taken;
        };
        auto floats = [&](std::int64_t count) {
            return reinterpret_cast<float*>(take(count, sizeof(float)));
        };
        const std::int64_t size = job.keys.size;
        const std::int64_t own =
            job.values_in_keys() ? latent_stride(job.value_size) : padded(job.value_size);
        const std::int64_t wider = size > own ? size : own;
        queries.floats = floats(rows * size);
        queries.scales = floats(rows * (size / 32));
        queries.values = reinterpret_cast<std::int8_t*>(take(rows * size, 1));
        queries.sums = reinterpret_cast<std::int16_t*>(take(rows * (size / 16), sizeof(std::int16_t)));
        quantized_queries = quantized_rows(take, rows, job.keys.type == DType::I16 ? size : 0);
        quantized_weights = quantized_rows(take, rows, job.values.type == DType::I16 ? kBlock : 0);
        widened = floats(kBlock * wider);
        panels = take(kBlockPanels * (panel_bytes(job.keys.type, size) + kStorageSlack), 1);
        stride = padded(job.length) + kLanes;
        weights = floats(rows * stride);
        part = floats(part_floats(rows, job.value_size));
        all = floats(part_floats(rows, job.value_size));
    }

   private:
    template <class Take>
    static QuantizedRows quantized_rows(const Take& take, std::int64_t rows, std::int64_t size) {
        const std::int64_t stride = padded(size);
        auto* values = reinterpret_cast<std::int16_t*>(take(rows * stride, sizeof(std::int16_t)));
        auto* scales = reinterpret_cast<float*>(take(rows, sizeof(float)));
        return {values, scales, reinterpret_cast<float*>(take(rows, sizeof(float))), stride};
    }
};

// The tokens of a tile and the history that they see, as entries; `origin` is the entry of position 0.
struct View {
    const Attention& job;
    Tile tile;
    std::int64_t kv_head;
    const Span* spans;
    std::int64_t group;
    std::int64_t rows;
    std::int64_t origin;
    std::int64_t begin;
    std::int64_t end;

    View(const Attention& job, Tile tile, std::int64_t kv_head)
        : job(job),
          tile(tile),
          kv_head(kv_head),
          spans(job.spans + tile.begin),
          group(job.group()),
          rows(tile.count * group),
          origin(spans[0].begin - spans[0].first),
          begin(spans[0].begin),
          end(spans[0].end) {
        for (std::int64_t token = 1; token < tile.count; ++token) {
            if (spans[token].begin < begin) begin = spans[token].begin;
            if (spans[token].end > end) end = spans[token].end;
        }
    }

    const Span& span(std::int64_t row) const { return spans[row / group]; }
    std::int64_t token(std::int64_t row) const { return tile.begin + row / group; }
    std::int64_t head(std::int64_t row) const { return kv_head * group + row % group; }
    // Chunks start at the origin plus multiples of their length; the chunk of the plain form starts at a
    // block.
    std::int64_t first_start() const {
        const std::int64_t step = job.is_plain ? kBlock : job.length;
        return origin + (begin - origin) / step * step;
    }
};

}  // namespace chaski::CHASKI_ISA
