// 64-bit hashes: xxh64 (Yann Collet's specification, seed 0), which the index format names, and a
// quick mix for tables that live no longer than a call.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace xxh64_detail {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                   kPrime5 = 0x27D4EB2F165667C5;

template <typename Word>
Word read(const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

inline uint64_t round(uint64_t lane, uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace xxh64_detail

inline uint64_t xxh64(std::string_view text) {
    using namespace xxh64_detail;
    const char *at = text.data(), *end = at + text.size();
    uint64_t hash = kPrime5;
    if (text.size() >= 32) {
        uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
        for (; end - at >= 32; at += 32)
            for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], read<uint64_t>(at + 8 * i));
        hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
               std::rotl(lanes[3], 18);
        for (const uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
    }
    hash += text.size();
    for (; end - at >= 8; at += 8)
        hash = std::rotl(hash ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
    for (; end - at >= 4; at += 4)
        hash = std::rotl(hash ^ read<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    for (; at < end; ++at)
        hash = std::rotl(hash ^ static_cast<uint8_t>(*at) * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

// Adds a word to a running hash.
inline uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    return hash ^ hash >> 32;
}
