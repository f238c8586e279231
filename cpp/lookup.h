// Finds values in the tables of grace/index/lookup.py, whose arrays may be mapped from a file.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

#include "arrays.h"
#include "hash.h"
#include "offsets.h"

// The first place of n ascending keys that is not below a wanted one. Hashes are spread evenly, and
// most ids are: a few guesses by the whole spread come close, and steps that double close in from
// there, so that keys spread in any other way cost no more than twice what halving does.
template <typename KeyAt>
size_t lower_place(size_t n, int64_t wanted, const KeyAt& key) {
    if (n == 0) return 0;
    const double first = static_cast<double>(key(0)), last = static_cast<double>(key(n - 1));
    const double per_key = last > first ? static_cast<double>(n - 1) / (last - first) : 0.0;
    const double target = static_cast<double>(wanted), end = static_cast<double>(n - 1);
    size_t place = static_cast<size_t>(std::clamp((target - first) * per_key, 0.0, end));
    for (int guess = 0; guess < 2; ++guess) {
        const double off = (target - static_cast<double>(key(place))) * per_key;
        if (std::abs(off) < 4) break;
        place = static_cast<size_t>(std::clamp(static_cast<double>(place) + off, 0.0, end));
    }
    size_t low = 0, high = n;  // the answer is in [low, high]
    if (key(place) < wanted) {
        low = place + 1;
        for (size_t step = 1; low < n; step *= 2) {
            const size_t probe = std::min(low + step, n) - 1;
            if (key(probe) >= wanted) {
                high = probe;
                break;
            }
            low = probe + 1;
        }
    } else {
        high = place;
        for (size_t step = 1; high > 0; step *= 2) {
            const size_t probe = high > step ? high - step : 0;
            if (key(probe) < wanted) {
                low = probe + 1;
                break;
            }
            high = probe;
        }
    }
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (key(middle) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// A `TextTable`.
class TextLookup {
public:
    TextLookup(In1<int64_t> hashes, Offsets numbers, In1<uint8_t> text, In1<int64_t> offsets)
        : hashes_(hashes), numbers_(numbers), text_(text), offsets_(offsets) {}

    // The number of a text, or -1.
    int64_t find(std::string_view wanted) const {
        const auto hash = static_cast<int64_t>(xxh64(wanted));
        const int64_t* hashes = hashes_.data();
        const size_t n = hashes_.shape(0);
        // Two texts may share a hash: their entries are neighbours.
        for (size_t at = lower_place(n, hash, [=](size_t i) { return hashes[i]; });
             at < n && hashes[at] == hash; ++at) {
            const int64_t number = numbers_[at];
            const int64_t first = offsets_.data()[number], last = offsets_.data()[number + 1];
            const char* stored = reinterpret_cast<const char*>(text_.data()) + first;
            if (std::string_view(stored, static_cast<size_t>(last - first)) == wanted) return number;
        }
        return -1;
    }

private:
    In1<int64_t> hashes_;
    OffsetReader numbers_;
    In1<uint8_t> text_;
    In1<int64_t> offsets_;
};

// An `IntegerTable`.
class IntegerLookup {
public:
    IntegerLookup(In1<int64_t> values, Offsets numbers) : values_(values), numbers_(numbers) {}

    // The number of an integer, or -1.
    int64_t find(int64_t wanted) const {
        const int64_t* values = values_.data();
        const size_t n = values_.shape(0);
        const auto key = [&](size_t i) { return values[numbers_[i]]; };
        const size_t at = lower_place(n, wanted, key);
        return at < n && key(at) == wanted ? numbers_[at] : -1;
    }

private:
    In1<int64_t> values_;
    OffsetReader numbers_;
};
