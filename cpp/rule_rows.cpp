#include "rule_rows.h"

#include <algorithm>

#include "threads.h"

namespace {

inline void set_bit(uint64_t* row, size_t bit) { row[bit / 64] |= uint64_t{1} << bit % 64; }

inline void clear_bit(uint64_t* row, size_t bit) { row[bit / 64] &= ~(uint64_t{1} << bit % 64); }

void set_bits(uint64_t* row, size_t first, size_t last) {  // last one included
    const uint64_t head = ~uint64_t{0} << first % 64, tail = ~uint64_t{0} >> (63 - last % 64);
    if (first / 64 == last / 64) {
        row[first / 64] |= head & tail;
        return;
    }
    row[first / 64] |= head;
    std::fill(row + first / 64 + 1, row + last / 64, ~uint64_t{0});
    row[last / 64] |= tail;
}

}  // namespace

RuleRows::RuleRows(nb::list attributes, int64_t num_bits, int64_t bloom_bits, int64_t num_hashes)
    : bitmask_words_(static_cast<size_t>(num_bits + 63) / 64),
      filter_words_(static_cast<size_t>(bloom_bits) / 64),
      filter_bits_(static_cast<uint64_t>(bloom_bits)),
      num_hashes_(static_cast<uint64_t>(num_hashes)) {
    for (nb::handle entry : attributes) {
        auto arrays = nb::cast<nb::tuple>(entry);
        Segment segment{nb::cast<size_t>(arrays[0]), nb::cast<size_t>(arrays[1]), Segment::kRange,
                        range_rules_.size()};
        if (arrays.size() == 4) {
            range_rules_.push_back({nb::cast<In1<int32_t>>(arrays[2]).data(),
                                    nb::cast<In1<int32_t>>(arrays[3]).data()});
        } else if (arrays.size() == 6) {
            segment.kind = Segment::kCategorical;
            segment.position = categorical_rules_.size();
            categorical_rules_.push_back(
                {lists(arrays[2], arrays[3]), lists(arrays[4], arrays[5])});
        } else {
            const auto hashes = nb::cast<In1<int64_t>>(arrays[4]);
            segment.kind = Segment::kSet;
            segment.position = set_rules_.size();
            set_rules_.push_back(
                {lists(arrays[2], arrays[3]), hashes.data(), hashes.shape(0), {}});
        }
        segments_.push_back(segment);
    }
}

RuleRows::Lists RuleRows::lists(nb::handle offsets, nb::handle values) {
    const auto bounds = nb::cast<Offsets>(offsets);
    return {OffsetReader(bounds), nb::cast<In1<int32_t>>(values).data(), num_segments(bounds)};
}

void RuleRows::hash_values(int workers) {
    for (SetRules& rules : set_rules_) {
        std::vector<uint64_t> masks(rules.num_values * filter_words_);
        for (size_t value = 0; value < rules.num_values; ++value) {
            const auto digest = static_cast<uint64_t>(rules.hashes[value]);
            const uint64_t first = digest & UINT32_MAX, second = digest >> 32 | 1;
            for (uint64_t i = 0; i < num_hashes_; ++i)
                set_bit(masks.data() + value * filter_words_, (first + i * second) % filter_bits_);
        }
        rules.filters.resize(rules.include.num_rules * filter_words_);
        over_range(rules.include.num_rules, workers, [&](size_t begin, size_t end) {
            const Lists& include = rules.include;
            for (size_t rule = begin; rule < end; ++rule) {
                uint64_t* filter = rules.filters.data() + rule * filter_words_;
                for (int64_t i = include.offsets[rule]; i < include.offsets[rule + 1]; ++i) {
                    const uint64_t* mask =
                        masks.data() + static_cast<size_t>(include.values[i]) * filter_words_;
                    for (size_t t = 0; t < filter_words_; ++t) filter[t] |= mask[t];
                }
            }
        });
    }
}

void RuleRows::write(const int32_t* signature, uint64_t* bitmask, uint64_t* bloom) const {
    std::fill_n(bitmask, bitmask_words_, 0);
    for (size_t a = 0; a < segments_.size(); ++a) {
        const Segment& segment = segments_[a];
        write_segment(segment, signature[a], bitmask);
        if (segment.kind != Segment::kSet) continue;
        const uint64_t* filter = set_rules_[segment.position].filters.data() +
                                 static_cast<size_t>(signature[a]) * filter_words_;
        std::copy_n(filter, filter_words_, bloom + segment.position * filter_words_);
    }
}

void RuleRows::write_segment(const Segment& segment, int32_t rule, uint64_t* bitmask) const {
    const size_t first = segment.first, other = first + segment.size - 2;
    if (rule == 0) {  // accepts whatever comes, the unknown too
        set_bits(bitmask, first, other + 1);
        return;
    }
    if (segment.kind == Segment::kRange) {
        const RangeRules& rules = range_rules_[segment.position];
        set_bits(bitmask, first + static_cast<size_t>(rules.first[rule]),
                 first + static_cast<size_t>(rules.last[rule]));
        return;
    }
    const bool categorical = segment.kind == Segment::kCategorical;
    const Lists& include = categorical ? categorical_rules_[segment.position].include
                                       : set_rules_[segment.position].include;
    const int64_t begin = include.offsets[rule], end = include.offsets[rule + 1];
    if (begin == end) set_bit(bitmask, other);
    if (!categorical) return;
    if (begin == end && other > first) set_bits(bitmask, first, other - 1);
    for (int64_t i = begin; i < end; ++i)
        set_bit(bitmask, first + static_cast<size_t>(include.values[i]));
    const Lists& exclude = categorical_rules_[segment.position].exclude;
    for (int64_t i = exclude.offsets[rule]; i < exclude.offsets[rule + 1]; ++i)
        clear_bit(bitmask, first + static_cast<size_t>(exclude.values[i]));
}
