#include "partitioner.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_COUNTS_BITS \
    __attribute__((target_clones("arch=icelake-server", "arch=x86-64-v3", "default")))
#else
#define GRACE_COUNTS_BITS
#endif

namespace {

constexpr size_t kLanes = 8;  // 64-bit lanes of the widest vectors

// Adds to after[p] the bits of `unit` that column p lacks. A unit of few values has few words set.
GRACE_COUNTS_BITS
void add_new_bits(const uint64_t* unit, size_t words, const uint64_t* columns, size_t stride,
                  size_t used, uint64_t* after) {
    for (size_t t = 0; t < words; ++t, columns += stride) {
        const uint64_t word = unit[t];
        if (word == 0) continue;
        for (size_t p = 0; p < used; ++p)
            after[p] += static_cast<uint64_t>(__builtin_popcountll(word & ~columns[p]));
    }
}

}  // namespace

Partitioner::Partitioner(RowTable& bitmasks, RowTable& blooms, size_t most,
                         std::optional<double> target, int64_t num_bits)
    : bitmasks_(bitmasks),
      blooms_(blooms),
      most_(most),
      target_(target),
      num_bits_(static_cast<double>(num_bits)),
      words_(bitmasks.width() + blooms.width()),
      stride_((most + kLanes - 1) / kLanes * kLanes),
      partitions_(most),
      unit_(words_),
      columns_(words_ * stride_),
      fills_(stride_),
      after_(stride_) {}

void Partitioner::clear() {
    // Columns past `used_` are all zero at any time.
    for (size_t t = 0; t < words_; ++t) std::fill_n(columns_.begin() + t * stride_, used_, 0);
    std::fill_n(fills_.begin(), used_, 0);
    used_ = 0;
}

void Partitioner::add(int32_t bitmask, int32_t bloom, size_t k) {
    std::copy_n(bitmasks_.row(bitmask), bitmasks_.width(), unit_.begin());
    std::copy_n(blooms_.row(bloom), blooms_.width(), unit_.begin() + bitmasks_.width());
    const size_t lanes = (used_ + kLanes - 1) / kLanes * kLanes;
    std::copy_n(fills_.begin(), lanes, after_.begin());
    add_new_bits(unit_.data(), words_, columns_.data(), stride_, lanes, after_.data());
    size_t best = 0;
    for (size_t p = 1; p < used_; ++p)
        if (after_[p] < after_[best]) best = p;
    if (used_ < k) {  // an empty partition, the first of them
        uint64_t alone = 0;
        for (const uint64_t word : unit_) alone += static_cast<uint64_t>(std::popcount(word));
        if (used_ == 0 || alone < after_[best]) {
            best = used_++;
            after_[best] = alone;
            partitions_[best] = {bitmask, bloom, false};
        }
    }
    Partition& chosen = partitions_[best];
    chosen.mixed |= chosen.bitmask != bitmask || chosen.bloom != bloom;
    fills_[best] = after_[best];
    for (size_t t = 0; t < words_; ++t) columns_[t * stride_ + best] |= unit_[t];
}

bool Partitioner::sparse_enough() const {
    uint64_t set = 0;
    for (size_t p = 0; p < used_; ++p) set += fills_[p];
    return static_cast<double>(set) <= *target_ * num_bits_ * static_cast<double>(used_);
}

void Partitioner::finish(RowIds& ids) {
    for (size_t p = 0; p < used_; ++p) {
        const Partition& partition = partitions_[p];
        if (!partition.mixed) {
            ids.push(partition.bitmask, partition.bloom);
            continue;
        }
        for (size_t t = 0; t < words_; ++t) unit_[t] = columns_[t * stride_ + p];
        ids.push(bitmasks_.intern(unit_.data()), blooms_.intern(unit_.data() + bitmasks_.width()));
    }
}
