// Splits the units under one trie node into partitions whose unions stay sparse (GRACE, 3.3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "row_table.h"

// Ids of bitmask and Bloom rows, side by side.
struct RowIds {
    std::vector<int32_t> bitmask, bloom;

    void push(int32_t bitmask_id, int32_t bloom_id) {
        bitmask.push_back(bitmask_id);
        bloom.push_back(bloom_id);
    }
};

class Partitioner {
public:
    // `num_bits`: bits of a bitmask and a Bloom row together. With a target the number of partitions
    // doubles until their mean share of set bits is at most the target, or `most` is reached.
    Partitioner(RowTable& bitmasks, RowTable& blooms, size_t most, std::optional<double> target,
                int64_t num_bits);

    // Appends the partitions of units [first, last) to `ids` and returns their number. `unit(i)` is
    // the pair of row ids of unit i.
    template <typename Unit>
    int32_t split(int64_t first, int64_t last, const Unit& unit, RowIds& ids) {
        size_t k = target_ ? 1 : most_;
        for (;; k = std::min(2 * k, most_)) {
            clear();
            for (int64_t i = first; i < last; ++i) {
                const auto [bitmask, bloom] = unit(i);
                add(bitmask, bloom, k);
            }
            // With a partition to spare, more of them would change nothing.
            if (k == most_ || used_ < k || sparse_enough()) break;
        }
        finish(ids);
        return static_cast<int32_t>(used_);
    }

private:
    void clear();
    void add(int32_t bitmask, int32_t bloom, size_t k);
    bool sparse_enough() const;
    void finish(RowIds& ids);

    struct Partition {
        int32_t bitmask, bloom;  // of its first unit
        bool mixed;              // whether other rows came to it
    };

    RowTable &bitmasks_, &blooms_;
    size_t most_;
    std::optional<double> target_;
    double num_bits_;
    size_t words_, stride_, used_ = 0;
    std::vector<Partition> partitions_;
    std::vector<uint64_t> unit_, columns_;  // [words], [words, stride]: a partition is a column
    std::vector<uint64_t> fills_, after_;   // [stride] set bits of each partition, now and after
};
