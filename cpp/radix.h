// A stable radix sort of 64-bit keys that carry a position along, least significant digit first.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "threads.h"

// Sorts (keys, positions) by the low `num_bits` of the keys; equal keys keep their order.
inline void radix_sort(std::vector<uint64_t>& keys, std::vector<uint32_t>& positions, int num_bits,
                       int workers) {
    constexpr int kMostBits = 11;
    const size_t size = keys.size();
    const int passes = (num_bits + kMostBits - 1) / kMostBits;
    if (size < 2 || passes == 0) return;
    const int digit_bits = (num_bits + passes - 1) / passes;
    const size_t buckets = size_t{1} << digit_bits;
    const size_t parts =
        std::clamp<size_t>(size >> 16, 1, static_cast<size_t>(std::max(workers, 1)));
    const std::vector<size_t> bounds = split(size, parts);
    std::vector<uint64_t> other_keys(size);
    std::vector<uint32_t> other_positions(size);
    std::vector<std::vector<size_t>> next(parts, std::vector<size_t>(buckets));
    for (int pass = 0; pass < passes; ++pass) {
        const int shift = pass * digit_bits;
        const uint64_t mask = buckets - 1;
        in_parallel(parts, [&](size_t part) {
            std::fill(next[part].begin(), next[part].end(), 0);
            for (size_t i = bounds[part]; i < bounds[part + 1]; ++i)
                ++next[part][keys[i] >> shift & mask];
        });
        // Counts -> where each part's share of each bucket begins: bucket by bucket, part by part.
        size_t before = 0;
        for (size_t bucket = 0; bucket < buckets; ++bucket)
            for (size_t part = 0; part < parts; ++part) {
                const size_t count = next[part][bucket];
                next[part][bucket] = before;
                before += count;
            }
        in_parallel(parts, [&](size_t part) {
            for (size_t i = bounds[part]; i < bounds[part + 1]; ++i) {
                const size_t to = next[part][keys[i] >> shift & mask]++;
                other_keys[to] = keys[i];
                other_positions[to] = positions[i];
            }
        });
        keys.swap(other_keys);
        positions.swap(other_positions);
    }
}
