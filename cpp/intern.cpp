// Dictionaries that a catalogue is read into: whole columns in, one number per row out. Equal rows get
// equal numbers, in order of first appearance. A dictionary is used by one thread at a time.

#include "intern.h"

#include <span>
#include <string>

#include "key_set.h"

namespace {

constexpr size_t kAhead = 16;  // keys whose slots are on their way while one is compared

// Adds n keys and writes their numbers. `key(i)` must stay valid until the chunk is done.
template <typename KeyAt>
void add_all(KeySet& keys, size_t n, KeyAt key, int32_t* ids) {
    uint64_t hashes[kAhead];
    for (size_t first = 0; first < n; first += kAhead) {
        const size_t count = std::min(kAhead, n - first);
        for (size_t i = 0; i < count; ++i) {
            const KeySet::Key next = key(first + i);
            hashes[i] = hash_bytes(next.bytes, next.length);
            keys.prefetch(hashes[i]);
        }
        for (size_t i = 0; i < count; ++i) ids[first + i] = keys.add(key(first + i), hashes[i]);
    }
}

void check_offsets(In1<int64_t> offsets, size_t end) {
    const size_t n = offsets.shape(0);
    bool ascending = n > 0 && offsets.data()[0] >= 0;
    for (size_t i = 1; ascending && i < n; ++i) ascending = offsets.data()[i - 1] <= offsets.data()[i];
    if (!ascending || static_cast<size_t>(offsets.data()[n - 1]) > end)
        throw std::invalid_argument("offsets must ascend within the values");
}

// Records of equal width: ends of ranges, windows, signatures.
class RecordSet {
public:
    explicit RecordSet(size_t width) : width_(width), keys_(width) {
        if (width == 0) throw std::invalid_argument("a record has at least one byte");
    }

    Out1<int32_t> add(In2<uint8_t> records) {
        if (records.shape(1) != width_) throw std::invalid_argument("records of another width");
        std::vector<int32_t> ids(records.shape(0));
        {
            nb::gil_scoped_release release;
            const uint8_t* data = records.data();
            const auto key = [&](size_t i) { return KeySet::Key{data + i * width_, width_}; };
            add_all(keys_, ids.size(), key, ids.data());
        }
        return to_numpy(std::move(ids));
    }

    Out2<uint8_t> records() const {
        const KeySet::Key first = keys_[0];
        std::vector<uint8_t> copy(first.bytes, first.bytes + keys_.size() * width_);
        return to_numpy(std::move(copy), keys_.size(), width_);
    }

private:
    size_t width_;
    KeySet keys_;
};

// Texts: attribute values.
class TextSet {
public:
    Out1<int32_t> add(In1<int64_t> offsets, In1<uint8_t> text) {
        check_offsets(offsets, text.shape(0));
        std::vector<int32_t> ids(offsets.shape(0) - 1);
        {
            nb::gil_scoped_release release;
            const int64_t* bounds = offsets.data();
            const auto key = [&](size_t i) {
                return KeySet::Key{text.data() + bounds[i], static_cast<size_t>(bounds[i + 1] - bounds[i])};
            };
            add_all(keys_, ids.size(), key, ids.data());
        }
        return to_numpy(std::move(ids));
    }

    size_t size() const { return keys_.size(); }

    // Offsets and bytes of the texts from number `first` on.
    nb::tuple texts(size_t first) const {
        std::vector<int64_t> offsets = {0};
        std::vector<uint8_t> bytes;
        for (size_t id = first; id < keys_.size(); ++id) {
            const KeySet::Key key = keys_[id];
            bytes.insert(bytes.end(), key.bytes, key.bytes + key.length);
            offsets.push_back(static_cast<int64_t>(bytes.size()));
        }
        return nb::make_tuple(to_numpy(std::move(offsets)), to_numpy(std::move(bytes)));
    }

private:
    KeySet keys_{0};
};

// Lists of value ids, as rows of a CSR matrix.
struct Lists {
    const int64_t* offsets;
    const int32_t* values;

    std::span<const int32_t> operator[](size_t row) const {
        return {values + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row])};
    }
};

// Rules on values: a set of included ids and one of excluded ids. Rule 0 names nothing.
//
// Rows repeat rules letter by letter, so a rule is first looked up as it is spelled; only a new
// spelling is sorted and freed of repeats, which may lead to a rule that is known.
class ValueRuleSet {
public:
    ValueRuleSet() { add(Lists{kNone, nullptr}, Lists{kNone, nullptr}, 1); }

    Out1<int32_t> add(In1<int64_t> include_offsets, In1<int32_t> include_values,
                      In1<int64_t> exclude_offsets, In1<int32_t> exclude_values) {
        check_offsets(include_offsets, include_values.shape(0));
        check_offsets(exclude_offsets, exclude_values.shape(0));
        if (include_offsets.shape(0) != exclude_offsets.shape(0))
            throw std::invalid_argument("as many include lists as exclude lists");
        std::vector<int32_t> rules;
        {
            nb::gil_scoped_release release;
            rules = add(Lists{include_offsets.data(), include_values.data()},
                        Lists{exclude_offsets.data(), exclude_values.data()},
                        include_offsets.shape(0) - 1);
        }
        return to_numpy(std::move(rules));
    }

    // include_offsets, include_values, exclude_offsets, exclude_values; ids ascend within a rule.
    nb::tuple lists() const {
        std::vector<int64_t> offsets[2] = {{0}, {0}};
        std::vector<int32_t> values[2];
        for (const int32_t spelling : spelling_of_) {
            const KeySet::Key key = spellings_[static_cast<size_t>(spelling)];
            std::vector<int32_t> ids(key.length / sizeof(int32_t));
            std::memcpy(ids.data(), key.bytes, key.length);
            const auto middle = ids.begin() + 1 + ids[0];
            values[0].insert(values[0].end(), ids.begin() + 1, middle);
            values[1].insert(values[1].end(), middle, ids.end());
            for (const int side : {0, 1}) offsets[side].push_back(static_cast<int64_t>(values[side].size()));
        }
        return nb::make_tuple(to_numpy(std::move(offsets[0])), to_numpy(std::move(values[0])),
                              to_numpy(std::move(offsets[1])), to_numpy(std::move(values[1])));
    }

private:
    static constexpr int64_t kNone[2] = {0, 0};

    std::vector<int32_t> add(Lists include, Lists exclude, size_t num_rows) {
        std::vector<int32_t> rules(num_rows);
        std::vector<int32_t> words;  // the spellings of one chunk: number included, included, excluded
        size_t starts[kAhead + 1];
        int32_t ids[kAhead];
        for (size_t first = 0; first < num_rows; first += kAhead) {
            const size_t count = std::min(kAhead, num_rows - first);
            words.clear();
            for (size_t i = 0; i < count; ++i) {
                starts[i] = words.size();
                spell(words, include[first + i], exclude[first + i]);
            }
            starts[count] = words.size();
            const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
            const auto key = [&](size_t i) {
                return KeySet::Key{bytes + starts[i] * sizeof(int32_t),
                                   (starts[i + 1] - starts[i]) * sizeof(int32_t)};
            };
            add_all(spellings_, count, key, ids);
            for (size_t i = 0; i < count; ++i) {
                if (rule_of(ids[i]) < 0)
                    name(ids[i], {words.data() + starts[i], starts[i + 1] - starts[i]});
                rules[first + i] = rule_of(ids[i]);
            }
        }
        return rules;
    }

    static void spell(std::vector<int32_t>& words, std::span<const int32_t> include,
                      std::span<const int32_t> exclude) {
        words.push_back(static_cast<int32_t>(include.size()));
        words.insert(words.end(), include.begin(), include.end());
        words.insert(words.end(), exclude.begin(), exclude.end());
    }

    // The rule of a spelling, or -1 while it has none.
    int32_t& rule_of(int32_t spelling) {
        if (rule_of_.size() <= static_cast<size_t>(spelling)) rule_of_.resize(spellings_.size(), -1);
        return rule_of_[static_cast<size_t>(spelling)];
    }

    // Gives a new spelling the rule of its canonical one.
    void name(int32_t spelling, std::span<int32_t> words) {
        std::vector<int32_t> canonical;
        const auto included = distinct(words.subspan(1, static_cast<size_t>(words[0])));
        const auto excluded = distinct(words.subspan(1 + static_cast<size_t>(words[0])));
        spell(canonical, included, excluded);
        const int32_t first = spellings_.add({reinterpret_cast<const uint8_t*>(canonical.data()),
                                              canonical.size() * sizeof(int32_t)});
        if (rule_of(first) < 0) {
            rule_of(first) = static_cast<int32_t>(spelling_of_.size());
            spelling_of_.push_back(first);
        }
        rule_of(spelling) = rule_of(first);
    }

    static std::span<int32_t> distinct(std::span<int32_t> ids) {
        std::sort(ids.begin(), ids.end());
        return ids.first(static_cast<size_t>(std::unique(ids.begin(), ids.end()) - ids.begin()));
    }

    KeySet spellings_{0};
    std::vector<int32_t> rule_of_;      // per spelling
    std::vector<int32_t> spelling_of_;  // per rule, its canonical spelling
};

}  // namespace

void bind_intern(nb::module_& module) {
    nb::class_<RecordSet>(module, "RecordSet", "Distinct records of `width` bytes, numbered.")
        .def(nb::init<size_t>(), nb::arg("width"))
        .def("add", &RecordSet::add, nb::arg("records"))
        .def("records", &RecordSet::records);
    nb::class_<TextSet>(module, "TextSet", "Distinct texts, numbered.")
        .def(nb::init<>())
        .def("__len__", &TextSet::size)
        .def("add", &TextSet::add, nb::arg("offsets"), nb::arg("text"))
        .def("texts", &TextSet::texts, nb::arg("first") = 0);
    nb::class_<ValueRuleSet>(module, "ValueRuleSet", "Distinct rules on value ids, numbered.")
        .def(nb::init<>())
        .def("add", nb::overload_cast<In1<int64_t>, In1<int32_t>, In1<int64_t>, In1<int32_t>>(
                        &ValueRuleSet::add),
             nb::arg("include_offsets"), nb::arg("include_values"), nb::arg("exclude_offsets"),
             nb::arg("exclude_values"))
        .def("lists", &ValueRuleSet::lists);
}
