// A set of distinct byte strings, numbered from 0 in the order in which they are first added.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

// 64 well mixed bits of a byte string: 128-bit products, folded, over 16 bytes at a time.
inline uint64_t hash_bytes(const uint8_t* bytes, size_t length) {
    const auto word = [](const uint8_t* p) {
        uint64_t value;
        std::memcpy(&value, p, sizeof value);
        return value;
    };
    const auto fold = [](uint64_t a, uint64_t b) {
        const auto product = static_cast<unsigned __int128>(a) * b;
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    };
    constexpr uint64_t kFirst = 0xa0761d6478bd642f, kSecond = 0xe7037ed1a0b428db;
    uint64_t hash = kFirst ^ length;
    uint64_t low = 0, high = 0;
    if (length >= 16) {
        const uint8_t* last = bytes + length - 16;
        for (; bytes < last; bytes += 16) hash = fold(word(bytes) ^ kFirst, word(bytes + 8) ^ hash);
        low = word(last);
        high = word(last + 8);
    } else if (length >= 8) {
        low = word(bytes);
        high = word(bytes + length - 8);
    } else {
        std::memcpy(&low, bytes, length);
    }
    return fold(fold(low ^ kSecond, high ^ hash), kFirst ^ length);
}

class KeySet {
public:
    struct Key {
        const uint8_t* bytes;
        size_t length;
    };

    // `width` bytes in every key, or 0 where lengths differ.
    explicit KeySet(size_t width) : width_(width), slots_(64) {}

    size_t size() const { return size_; }

    Key operator[](size_t id) const {
        if (width_ != 0) return {arena_.data() + id * width_, width_};
        return {arena_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]};
    }

    void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[start(hash)]); }

    // The number of a key, which is added where it is new. The hash only says where to look.
    int32_t add(Key key, uint64_t hash) {
        const uint64_t tag = hash >> 32;
        size_t slot = start(hash);
        for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
            if (slots_[slot] >> 32 != tag) continue;
            const auto id = static_cast<uint32_t>(slots_[slot]) - 1;
            const Key known = (*this)[id];
            if (known.length == key.length && std::equal(key.bytes, key.bytes + key.length, known.bytes))
                return static_cast<int32_t>(id);
        }
        if (size_ == std::numeric_limits<int32_t>::max())
            throw std::length_error("more than 2^31 - 1 distinct values, rules or combinations");
        arena_.insert(arena_.end(), key.bytes, key.bytes + key.length);
        if (width_ == 0) offsets_.push_back(arena_.size());
        ++size_;
        slots_[slot] = tag << 32 | size_;
        if (2 * size_ > slots_.size()) grow();
        return static_cast<int32_t>(size_ - 1);
    }

    int32_t add(Key key) { return add(key, hash_bytes(key.bytes, key.length)); }

private:
    // Slots are found by the half of the hash that they keep, so that growing needs no key.
    size_t start(uint64_t hash) const { return (hash >> 32) & (slots_.size() - 1); }

    void grow() {
        std::vector<uint64_t> old(2 * slots_.size());
        old.swap(slots_);
        for (const uint64_t entry : old) {
            if (entry == 0) continue;
            size_t slot = start(entry);
            while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
            slots_[slot] = entry;
        }
    }

    size_t width_;
    size_t size_ = 0;
    std::vector<uint8_t> arena_;           // the keys, one after the other
    std::vector<uint64_t> offsets_ = {0};  // [size + 1], where widths differ
    std::vector<uint64_t> slots_;          // open addressing: 0, or half a hash and an id + 1
};
