// Rules -> bits: the packed bitmask and Bloom row of a signature (docs/matching.md).
#pragma once

#include <vector>

#include "offsets.h"

class RuleRows {
public:
    // `attributes`: per attribute its first bit, its number of bits, and
    //   range: int32 [R] first and last elementary interval;
    //   categorical: include and exclude offsets and value ids;
    //   set: include offsets and value ids, and int64 [V], the xxh64 of each value.
    RuleRows(nb::list attributes, int64_t num_bits, int64_t bloom_bits, int64_t num_hashes);

    size_t bitmask_words() const { return bitmask_words_; }
    size_t bloom_words() const { return set_rules_.size() * filter_words_; }

    // Makes the filter of every rule; the other functions need it once before.
    void hash_values(int workers);

    // Overwrites `bitmask` and `bloom` with the bits of a signature's rules.
    void write(const int32_t* signature, uint64_t* bitmask, uint64_t* bloom) const;

private:
    struct Lists {
        OffsetReader offsets;
        const int32_t* values;
        size_t num_rules;
    };
    struct Segment {
        size_t first, size;
        enum { kRange, kCategorical, kSet } kind;
        size_t position;  // in the vector of its kind
    };
    struct RangeRules {
        const int32_t *first, *last;
    };
    struct CategoricalRules {
        Lists include, exclude;
    };
    struct SetRules {
        Lists include;
        const int64_t* hashes;
        size_t num_values;
        std::vector<uint64_t> filters;  // [R, w / 64]
    };

    static Lists lists(nb::handle offsets, nb::handle values);
    void write_segment(const Segment& segment, int32_t rule, uint64_t* bitmask) const;

    size_t bitmask_words_, filter_words_;
    uint64_t filter_bits_, num_hashes_;
    std::vector<Segment> segments_;
    std::vector<RangeRules> range_rules_;
    std::vector<CategoricalRules> categorical_rules_;
    std::vector<SetRules> set_rules_;
};
