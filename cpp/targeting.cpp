// The attributes and times of a batch of requests, in the numbers of one index: what is plain (see
// plain.h) is read here, in one call; grace/index/rules.py defines what is right.

#include "targeting.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <limits>

#include "iso_time.h"
#include "lookup.h"
#include "plain.h"
#include "request_texts.h"

namespace {

enum class Kind { range, one, many };

struct Attribute {
    Kind kind;
    std::optional<TextLookup> values;  // those that some rule names; none of a range
};

// What one request carries of one attribute: a number, or some of the batch's texts.
struct Carried {
    bool known = false;
    double number = std::numeric_limits<double>::quiet_NaN();
    size_t first = 0, last = 0;
};

// V: what values are, objects or nodes.
template <typename V>
struct Batch {
    size_t num_attributes;
    std::vector<Carried> carried;
    TextCopies texts;
    std::vector<V> values;  // of the texts
    Names names;            // of this call alone: they remember where they stopped
    Spelling spelling;
};


class TargetingReader {
public:
    // Per attribute its name, its kind and the arrays of its values.
    explicit TargetingReader(nb::list attributes) {
        for (nb::handle entry : attributes) {
            auto [name, kind, arrays] =
                nb::cast<std::tuple<std::string_view, std::string_view, nb::tuple>>(entry);
            names_.add(name);
            if (kind == "range") {
                attributes_.push_back({Kind::range, std::nullopt});
                continue;
            }
            TextLookup values(nb::cast<In1<int64_t>>(arrays[0]), nb::cast<Offsets>(arrays[1]),
                              nb::cast<In1<uint8_t>>(arrays[2]), nb::cast<In1<int64_t>>(arrays[3]));
            attributes_.push_back({kind == "set" ? Kind::many : Kind::one, values});
        }
    }

    // Returns, per request or None where it is not plain, (what it carries per attribute, microseconds
    // since 1970 or None for now); then per request and attribute whether it is known, numbers, and
    // the ids of carried values with their bounds.
    nb::tuple read(nb::list attributes, nb::list times) const {
        const size_t n = attributes.size();
        if (times.size() != n) throw std::invalid_argument("expected as many times as attributes");
        auto batch = batch_of<PyObject*>(n);
        std::vector<Time> at(n);
        std::vector<bool> plain(n);
        for (size_t i = 0; i < n; ++i)
            plain[i] = read_row(item(attributes, i), item(times, i), i, batch, at[i]);
        return written(batch, at, plain);
    }

    // The same of texts; the interpreter is held only to write the result.
    nb::tuple read_texts(const RequestTexts& texts) const {
        const size_t n = texts.size();
        auto batch = batch_of<const json::Node*>(n);
        std::vector<Time> at(n);
        std::vector<bool> plain(n);
        {
            nb::gil_scoped_release release;
            for (size_t i = 0; i < n; ++i)
                plain[i] = texts[i].plain && read_row(texts[i].attributes, texts[i].at, i, batch, at[i]);
        }
        return written(batch, at, plain);
    }

private:
    using Time = std::optional<int64_t>;  // microseconds since 1970, or now

    static PyObject* item(const nb::list& list, size_t i) {
        PyObject* value = PyList_GET_ITEM(list.ptr(), i);
        return value == Py_None ? nullptr : value;
    }

    template <typename V>
    Batch<V> batch_of(size_t n) const {
        const size_t width = attributes_.size();
        return {width, std::vector<Carried>(n * width), {}, {}, names_, {}};
    }

    // Whether a request is plain; nothing of it stays in the batch if it is not. A null pointer says
    // nothing.
    template <typename V>
    bool read_row(V attributes, V time, size_t i, Batch<V>& batch, Time& at) const {
        const size_t texts = batch.texts.size();
        Carried* row = batch.carried.data() + i * batch.num_attributes;
        const bool plain = (time == nullptr || read_time(time, at)) &&
                           (attributes == nullptr || read_one(attributes, row, batch));
        if (plain) return true;
        std::fill_n(row, batch.num_attributes, Carried{});
        batch.texts.cut(texts);
        batch.values.resize(texts);
        return false;
    }

    template <typename V>
    nb::tuple written(const Batch<V>& batch, const std::vector<Time>& at, const std::vector<bool>& plain) const {
        const size_t n = plain.size(), width = batch.num_attributes;
        nb::list given;
        for (size_t i = 0; i < n; ++i) {
            if (plain[i])
                given.append(nb::make_tuple(given_of(batch, i), at[i] ? nb::object(nb::int_(*at[i])) : nb::none()));
            else
                given.append(nb::none());
        }
        std::vector<uint8_t> known(n * width);
        std::vector<double> numbers(n * width);
        std::vector<int32_t> ids;
        std::vector<int64_t> bounds;
        {
            nb::gil_scoped_release release;
            for (size_t i = 0; i < known.size(); ++i) {
                known[i] = batch.carried[i].known;
                numbers[i] = batch.carried[i].number;
            }
            look_up(batch, ids, bounds);
        }
        return nb::make_tuple(given, to_numpy(std::move(known), n, width),
                              to_numpy(std::move(numbers), n, width), to_numpy(std::move(ids)),
                              to_numpy(std::move(bounds)));
    }

    template <typename V>
    static bool read_time(V time, Time& at) {
        std::string_view text;
        int64_t microseconds;
        if (!plain_text(time, text) || !iso_time(text, microseconds)) return false;
        at = microseconds;
        return true;
    }

    template <typename V>
    bool read_one(V attributes, Carried* row, Batch<V>& batch) const {
        return plain_items(attributes, batch.names, [&](int a, V value) {
            return is_null(value) || read_value(attributes_[a], value, row[a], batch);
        });
    }

    template <typename V>
    static bool read_value(const Attribute& attribute, V value, Carried& carried, Batch<V>& batch) {
        size_t count = 0;
        const size_t first = batch.texts.size();
        const auto use = [&](V one) {
            if (++count > 1 && attribute.kind != Kind::many) return false;
            if (attribute.kind == Kind::range) {
                constexpr double kMaxExact = 9007199254740992.0;  // 2^53, past which ints are refused
                return plain_number(one, carried.number) &&
                       (is_float(one) || std::abs(carried.number) < kMaxExact);
            }
            std::string_view text;
            if (!batch.spelling.of(one, text)) return false;
            batch.texts.add(text);
            batch.values.push_back(one);
            return true;
        };
        if (!(is_list(value) ? plain_list(value, use) : use(value))) return false;
        carried.known = count > 0;
        carried.first = first;
        carried.last = batch.texts.size();
        return true;
    }

    // What `Targeting` takes as given.
    template <typename V>
    nb::object given_of(const Batch<V>& batch, size_t i) const {
        nb::object given = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(attributes_.size())));
        for (size_t a = 0; a < attributes_.size(); ++a) {
            const Carried& carried = batch.carried[i * attributes_.size() + a];
            nb::object value = nb::none();
            if (carried.known && attributes_[a].kind == Kind::range) value = nb::float_(carried.number);
            if (carried.known && attributes_[a].kind != Kind::range) {
                value = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(carried.last - carried.first)));
                for (size_t t = carried.first; t < carried.last; ++t)
                    PyTuple_SET_ITEM(value.ptr(), t - carried.first, object_of(batch.values[t]).release().ptr());
            }
            PyTuple_SET_ITEM(given.ptr(), a, value.release().ptr());
        }
        return given;
    }

    // The ids of the values that each request carries, ascending, each once.
    template <typename V>
    void look_up(const Batch<V>& batch, std::vector<int32_t>& ids, std::vector<int64_t>& bounds) const {
        ids.reserve(batch.texts.size());
        bounds.reserve(batch.carried.size() + 1);
        bounds.push_back(0);
        for (size_t i = 0; i < batch.carried.size(); ++i) {
            const Carried& carried = batch.carried[i];
            const size_t first = ids.size();
            for (size_t t = carried.first; t < carried.last; ++t) {
                const int64_t id = attributes_[i % batch.num_attributes].values->find(batch.texts[t]);
                if (id >= 0) ids.push_back(static_cast<int32_t>(id));
            }
            std::sort(ids.begin() + first, ids.end());
            ids.erase(std::unique(ids.begin() + first, ids.end()), ids.end());
            bounds.push_back(static_cast<int64_t>(ids.size()));
        }
    }

    Names names_;
    std::vector<Attribute> attributes_;
};

}  // namespace

void bind_targeting(nb::module_& module) {
    nb::class_<TargetingReader>(module, "TargetingReader")
        .def(nb::init<nb::list>(), nb::arg("attributes"))
        .def("read", &TargetingReader::read, nb::arg("attributes"), nb::arg("times"))
        .def("read_texts", &TargetingReader::read_texts, nb::arg("texts"));
}
