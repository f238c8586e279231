// Work split over a given number of threads; the split never shows in a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

// Bounds of `parts` pieces of [0, size) of nearly equal size: parts + 1 ascending numbers.
inline std::vector<size_t> split(size_t size, size_t parts) {
    std::vector<size_t> bounds(parts + 1);
    for (size_t part = 0; part <= parts; ++part)
        bounds[part] = size / parts * part + size % parts * part / parts;
    return bounds;
}

// Calls work(part) for each part, every call in a thread of its own; rethrows the first exception.
template <typename Work>
void in_parallel(size_t parts, const Work& work) {
    if (parts == 1) {
        work(0);
        return;
    }
    std::vector<std::exception_ptr> failed(parts);
    std::vector<std::thread> threads;
    threads.reserve(parts);
    for (size_t part = 0; part < parts; ++part)
        threads.emplace_back([&, part] {
            try {
                work(part);
            } catch (...) {
                failed[part] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : failed)
        if (error) std::rethrow_exception(error);
}

// Calls work(first, last) on pieces of [0, size), small sizes in the calling thread.
template <typename Work>
void over_range(size_t size, int workers, const Work& work) {
    constexpr size_t kSmallest = 1 << 14;  // below this a thread costs more than it saves
    const size_t parts =
        std::clamp<size_t>(size / kSmallest, 1, static_cast<size_t>(std::max(workers, 1)));
    const std::vector<size_t> bounds = split(size, parts);
    in_parallel(parts, [&](size_t part) { work(bounds[part], bounds[part + 1]); });
}

// Calls work(i) for each i of [0, size), each a tenth of a millisecond or more; threads take the next one as
// they become free.
template <typename Work>
void each_in_parallel(size_t size, int workers, const Work& work) {
    constexpr size_t kMost = 8;  // more take as long to start as they save
    std::atomic<size_t> next{0};
    const size_t parts = std::clamp<size_t>(std::min<size_t>(size, std::max(workers, 1)), 1, kMost);
    in_parallel(parts, [&](size_t) {
        for (size_t i; (i = next++) < size;) work(i);
    });
}
