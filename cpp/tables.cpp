// Renumbering of dictionaries: ids in the order in which they are first met, rows and lists moved
// accordingly, and the rows and lists of one dictionary found in another.

#include "tables.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <unordered_map>

#include "hash.h"
#include "threads.h"

namespace {

// Gives ids new numbers in the order in which they first appear: (new id of each element, old ids
// by new number). With `keep_zero`, 0 stays 0 whether it appears or not.
nb::tuple first_seen(In1<int32_t> ids, std::optional<In1<uint32_t>> order, int64_t count,
                     bool keep_zero) {
    const size_t size = order ? order->shape(0) : ids.shape(0);
    std::vector<int32_t> renumbered(size), old_ids;
    {
        nb::gil_scoped_release release;
        std::vector<int32_t> new_ids(static_cast<size_t>(count), -1);
        if (keep_zero) {
            new_ids.at(0) = 0;
            old_ids.push_back(0);
        }
        for (size_t i = 0; i < size; ++i) {
            const int32_t old_id = ids.data()[order ? order->data()[i] : i];
            if (old_id < 0 || old_id >= count) throw std::out_of_range("no such id in the table");
            int32_t& new_id = new_ids[static_cast<size_t>(old_id)];
            if (new_id < 0) {
                new_id = static_cast<int32_t>(old_ids.size());
                old_ids.push_back(old_id);
            }
            renumbered[i] = new_id;
        }
    }
    return nb::make_tuple(to_numpy(std::move(renumbered)), to_numpy(std::move(old_ids)));
}

// Takes lists by number, with their values renumbered and ascending: (offsets, values).
template <typename Offset>
nb::tuple take_lists(In1<Offset> offsets, In1<int32_t> values, In1<int32_t> rows,
                     In1<int32_t> new_values, int workers) {
    const size_t size = rows.shape(0);
    std::vector<int64_t> new_offsets(size + 1, 0);
    std::vector<int32_t> taken;
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < size; ++i) {
            const auto* list = offsets.data() + rows.data()[i];
            new_offsets[i + 1] = new_offsets[i] + (list[1] - list[0]);
        }
        taken.resize(static_cast<size_t>(new_offsets[size]));
        over_range(size, workers, [&](size_t first, size_t last) {
            for (size_t i = first; i < last; ++i) {
                const auto* list = offsets.data() + rows.data()[i];
                int32_t* to = taken.data() + new_offsets[i];
                for (auto k = list[0]; k < list[1]; ++k)
                    to[k - list[0]] = new_values.data()[values.data()[k]];
                std::sort(to, to + (list[1] - list[0]));
            }
        });
    }
    return nb::make_tuple(to_numpy(std::move(new_offsets)), to_numpy(std::move(taken)));
}

// Finds entries of a small dictionary in a large one, which is read once from front to back.
template <typename Hash, typename Equal>
std::vector<int32_t> find(size_t num_stored, const Hash& stored_hash, size_t num_wanted,
                          const Hash& wanted_hash, const Equal& equal, int workers) {
    std::unordered_multimap<uint64_t, int32_t> wanted;
    wanted.reserve(num_wanted);
    for (size_t i = 0; i < num_wanted; ++i) wanted.emplace(wanted_hash(i), static_cast<int32_t>(i));
    std::vector<int32_t> found(num_wanted, -1);
    if (num_wanted == 0) return found;
    // One bit per hash says "not wanted" nearly always, without the table's cache misses.
    constexpr size_t kBits = size_t{1} << 24;
    std::vector<bool> maybe(kBits);
    for (const auto& entry : wanted) maybe[entry.first % kBits] = true;
    over_range(num_stored, workers, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; ++i) {
            const uint64_t hash = stored_hash(i);
            if (!maybe[hash % kBits]) continue;
            for (auto [at, end] = wanted.equal_range(hash); at != end; ++at)
                if (equal(i, static_cast<size_t>(at->second)))  // stored entries are distinct
                    found[static_cast<size_t>(at->second)] = static_cast<int32_t>(i);
        }
    });
    return found;
}

Out1<int32_t> find_rows(In2<int32_t> stored, In2<int32_t> wanted, int workers) {
    std::vector<int32_t> found;
    {
        nb::gil_scoped_release release;
        const size_t width = stored.shape(1);
        if (wanted.shape(1) != width) throw std::invalid_argument("rows must be equally wide");
        auto hash_of = [width](const int32_t* rows) {
            return [=](size_t i) {
                uint64_t hash = width;
                for (size_t k = 0; k < width; ++k)
                    hash = mixed(hash, static_cast<uint32_t>(rows[i * width + k]));
                return hash;
            };
        };
        found = find(
            stored.shape(0), hash_of(stored.data()), wanted.shape(0), hash_of(wanted.data()),
            [&](size_t i, size_t k) {
                const int32_t* row = stored.data() + i * width;
                return std::equal(row, row + width, wanted.data() + k * width);
            },
            workers);
    }
    return to_numpy(std::move(found));
}

// Lists of included and of excluded ids, ascending, as a rule has them.
template <typename Offset>
struct Pairs {
    const Offset *include_offsets, *exclude_offsets;
    const int32_t *include_values, *exclude_values;

    std::pair<const int32_t*, const int32_t*> include(size_t i) const {
        return {include_values + include_offsets[i], include_values + include_offsets[i + 1]};
    }
    std::pair<const int32_t*, const int32_t*> exclude(size_t i) const {
        return {exclude_values + exclude_offsets[i], exclude_values + exclude_offsets[i + 1]};
    }
    uint64_t hash(size_t i) const {
        uint64_t hash = 0;
        for (const auto& [first, last] : {include(i), exclude(i)}) {
            hash = mixed(hash, static_cast<uint64_t>(last - first));
            for (const int32_t* at = first; at < last; ++at)
                hash = mixed(hash, static_cast<uint32_t>(*at));
        }
        return hash;
    }
};

template <typename Offset>
Out1<int32_t> find_rules(In1<Offset> include_offsets, In1<int32_t> include_values,
                         In1<Offset> exclude_offsets, In1<int32_t> exclude_values,
                         In1<int64_t> wanted_include_offsets, In1<int32_t> wanted_include_values,
                         In1<int64_t> wanted_exclude_offsets, In1<int32_t> wanted_exclude_values,
                         int workers) {
    std::vector<int32_t> found;
    {
        nb::gil_scoped_release release;
        const Pairs<Offset> stored{include_offsets.data(), exclude_offsets.data(),
                                   include_values.data(), exclude_values.data()};
        const Pairs<int64_t> wanted{wanted_include_offsets.data(), wanted_exclude_offsets.data(),
                                    wanted_include_values.data(), wanted_exclude_values.data()};
        auto same = [](const auto& a, const auto& b) {
            return std::equal(a.first, a.second, b.first, b.second);
        };
        const std::function<uint64_t(size_t)> stored_hash = [&](size_t i) { return stored.hash(i); };
        const std::function<uint64_t(size_t)> wanted_hash = [&](size_t i) { return wanted.hash(i); };
        found = find(
            include_offsets.shape(0) - 1, stored_hash, wanted_include_offsets.shape(0) - 1,
            wanted_hash,
            [&](size_t i, size_t k) {
                return same(stored.include(i), wanted.include(k)) &&
                       same(stored.exclude(i), wanted.exclude(k));
            },
            workers);
    }
    return to_numpy(std::move(found));
}

Out1<int64_t> hash_texts(In1<uint8_t> text, In1<int64_t> offsets, int workers) {
    std::vector<int64_t> hashes(offsets.shape(0) - 1);
    {
        nb::gil_scoped_release release;
        over_range(hashes.size(), workers, [&](size_t first, size_t last) {
            for (size_t i = first; i < last; ++i) {
                const int64_t begin = offsets.data()[i];
                hashes[i] = static_cast<int64_t>(
                    xxh64({reinterpret_cast<const char*>(text.data()) + begin,
                           static_cast<size_t>(offsets.data()[i + 1] - begin)}));
            }
        });
    }
    return to_numpy(std::move(hashes));
}

template <typename Offset>
void bind_lists(nb::module_& module) {
    module.def("take_lists", &take_lists<Offset>, nb::arg("offsets"), nb::arg("values"),
               nb::arg("rows"), nb::arg("new_values"), nb::arg("workers"),
               "(int64 offsets, int32 values) of the lists `rows`, their values renumbered and "
               "ascending.");
    module.def("find_rules", &find_rules<Offset>, nb::arg("include_offsets"),
               nb::arg("include_values"), nb::arg("exclude_offsets"), nb::arg("exclude_values"),
               nb::arg("wanted_include_offsets"), nb::arg("wanted_include_values"),
               nb::arg("wanted_exclude_offsets"), nb::arg("wanted_exclude_values"),
               nb::arg("workers"), "int32: the number of each wanted rule among the stored, or -1.");
}

}  // namespace

void bind_tables(nb::module_& module) {
    module.def("first_seen", &first_seen, nb::arg("ids"), nb::arg("order").none(), nb::arg("count"),
               nb::arg("keep_zero"),
               "(int32 new id of each element, int32 old ids by new id): ids numbered as they "
               "first appear.");
    module.def("find_rows", &find_rows, nb::arg("stored"), nb::arg("wanted"), nb::arg("workers"),
               "int32: the number of each wanted row among the distinct stored rows, or -1.");
    module.def("hash_texts", &hash_texts, nb::arg("text"), nb::arg("offsets"), nb::arg("workers"),
               "int64: xxh64 of each text.");
    bind_lists<int32_t>(module);
    bind_lists<int64_t>(module);
}
