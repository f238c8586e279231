// Distinct rows of 64-bit words, each stored once, filled from several threads.
//
// Ids depend on which thread came first; whoever needs an order of its own renumbers. A row never
// moves, so rows that are already there may be read while others are added.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "hash.h"

class RowTable {
public:
    explicit RowTable(size_t width) : width_(width), shards_(kShards) {}

    size_t width() const { return width_; }

    const uint64_t* row(int32_t id) const {
        const auto number = static_cast<uint32_t>(id);
        return shards_[number % kShards].row(number / kShards, width_);
    }

    // Returns the id of an equal row, adding it if there is none.
    int32_t intern(const uint64_t* row) {
        uint64_t hash = width_;
        for (size_t t = 0; t < width_; ++t) hash = mixed(hash, row[t]);
        const size_t shard = hash >> (64 - std::bit_width(kShards - 1));
        const uint32_t number = shards_[shard].intern(row, static_cast<uint32_t>(hash), width_);
        return static_cast<int32_t>(number * kShards + shard);
    }

    // All ids are below it.
    size_t bound() const {
        uint32_t most = 0;
        for (const Shard& shard : shards_) most = std::max(most, shard.size);
        return size_t{most} * kShards;
    }

private:
    static constexpr uint32_t kShards = 64;
    static constexpr uint32_t kMostRows = (uint32_t{1} << 31) / kShards;

    struct Slot {
        uint32_t hash;
        uint32_t number = kEmpty;
    };
    static constexpr uint32_t kEmpty = UINT32_MAX;

    struct Shard {
        std::mutex mutex;
        std::vector<Slot> slots = std::vector<Slot>(16);
        uint32_t size = 0;
        // Chunk c holds 64 * 2^c rows.
        std::array<std::unique_ptr<uint64_t[]>, 26> chunks;

        uint64_t* row(uint32_t number, size_t width) const {
            const int chunk = std::bit_width(number / 64 + 1) - 1;
            const size_t first = ((size_t{1} << chunk) - 1) * 64;
            return chunks[chunk].get() + (number - first) * width;
        }

        uint32_t intern(const uint64_t* wanted, uint32_t hash, size_t width) {
            const std::lock_guard lock(mutex);
            size_t at = hash & (slots.size() - 1);
            for (; slots[at].number != kEmpty; at = (at + 1) & (slots.size() - 1))
                if (slots[at].hash == hash &&
                    std::memcmp(row(slots[at].number, width), wanted, width * 8) == 0)
                    return slots[at].number;
            if (size == kMostRows) throw std::length_error("more than 2^31 distinct matcher rows");
            slots[at] = {hash, size};
            const int chunk = std::bit_width(size / 64 + 1) - 1;
            if (!chunks[chunk]) chunks[chunk].reset(new uint64_t[(size_t{64} << chunk) * width]);
            std::memcpy(row(size, width), wanted, width * 8);
            if (++size * size_t{8} > slots.size() * 5) grow();
            return size - 1;
        }

        void grow() {
            std::vector<Slot> wider(slots.size() * 2);
            for (const Slot& slot : slots) {
                if (slot.number == kEmpty) continue;
                size_t at = slot.hash & (wider.size() - 1);
                while (wider[at].number != kEmpty) at = (at + 1) & (wider.size() - 1);
                wider[at] = slot;
            }
            slots.swap(wider);
        }
    };

    size_t width_;
    std::vector<Shard> shards_;
};
