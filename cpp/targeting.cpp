// The attributes and times of a batch of requests, in the numbers of one index: what is plain (see
// plain.h) is read here, in one call; grace/index/rules.py defines what is right.

#include "targeting.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <limits>

#include "iso_time.h"
#include "lookup.h"
#include "plain.h"

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

struct Batch {
    size_t num_attributes;
    std::vector<Carried> carried;
    TextCopies texts;
    std::vector<nb::object> objects;  // of the texts
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
    nb::tuple read(nb::list attributes, nb::list times) {
        const size_t n = attributes.size(), width = attributes_.size();
        if (times.size() != n) throw std::invalid_argument("expected as many times as attributes");
        Batch batch{width, std::vector<Carried>(n * width), {}, {}};
        std::vector<int64_t> at(n);
        std::vector<bool> plain(n);
        for (size_t i = 0; i < n; ++i) {
            const size_t texts = batch.texts.size();
            Carried* row = batch.carried.data() + i * width;
            plain[i] = read_time(item(times, i), at[i]) && read_one(item(attributes, i), row, batch);
            if (plain[i]) continue;
            std::fill_n(row, width, Carried{});
            batch.texts.cut(texts);
            batch.objects.resize(texts);
        }
        nb::list given;
        for (size_t i = 0; i < n; ++i) {
            if (plain[i])
                given.append(nb::make_tuple(given_of(batch, i), time_of(item(times, i), at[i])));
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

private:
    static PyObject* item(const nb::list& list, size_t i) { return PyList_GET_ITEM(list.ptr(), i); }

    static bool read_time(PyObject* time, int64_t& at) {
        std::string_view text;
        return time == Py_None || (plain_text(time, text) && iso_time(text, at));
    }

    static nb::object time_of(PyObject* time, int64_t at) {
        return time == Py_None ? nb::none() : nb::object(nb::int_(at));
    }

    bool read_one(PyObject* attributes, Carried* row, Batch& batch) {
        if (attributes == Py_None) return true;
        return plain_items(attributes, names_, [&](int a, PyObject* value) {
            return read_value(attributes_[a], value, row[a], batch);
        });
    }

    bool read_value(const Attribute& attribute, PyObject* value, Carried& carried, Batch& batch) {
        if (value == Py_None) return true;
        PyObject* const* values = &value;
        Py_ssize_t count = 1;
        if (PyList_CheckExact(value)) {
            values = reinterpret_cast<PyListObject*>(value)->ob_item;
            count = PyList_GET_SIZE(value);
        }
        if (count == 0) return true;
        if (count > 1 && attribute.kind != Kind::many) return false;
        carried.known = true;
        if (attribute.kind == Kind::range) {
            constexpr double kMaxExact = 9007199254740992.0;  // 2^53, past which ints are refused
            return plain_number(values[0], carried.number) &&
                   (PyFloat_CheckExact(values[0]) || std::abs(carried.number) < kMaxExact);
        }
        carried.first = batch.texts.size();
        std::string_view text;
        for (Py_ssize_t i = 0; i < count; ++i) {
            if (!spelling_.of(values[i], text)) return false;
            batch.texts.add(text);
            batch.objects.push_back(nb::borrow(values[i]));
        }
        carried.last = batch.texts.size();
        return true;
    }

    // What `Targeting` takes as given.
    nb::object given_of(const Batch& batch, size_t i) const {
        nb::object given = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(attributes_.size())));
        for (size_t a = 0; a < attributes_.size(); ++a) {
            const Carried& carried = batch.carried[i * attributes_.size() + a];
            nb::object value = nb::none();
            if (carried.known && attributes_[a].kind == Kind::range) value = nb::float_(carried.number);
            if (carried.known && attributes_[a].kind != Kind::range) {
                value = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(carried.last - carried.first)));
                for (size_t t = carried.first; t < carried.last; ++t)
                    PyTuple_SET_ITEM(value.ptr(), t - carried.first, nb::object(batch.objects[t]).release().ptr());
            }
            PyTuple_SET_ITEM(given.ptr(), a, value.release().ptr());
        }
        return given;
    }

    // The ids of the values that each request carries, ascending, each once.
    void look_up(const Batch& batch, std::vector<int32_t>& ids, std::vector<int64_t>& bounds) const {
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
    Spelling spelling_;
    std::vector<Attribute> attributes_;
};

}  // namespace

void bind_targeting(nb::module_& module) {
    nb::class_<TargetingReader>(module, "TargetingReader")
        .def(nb::init<nb::list>(), nb::arg("attributes"))
        .def("read", &TargetingReader::read, nb::arg("attributes"), nb::arg("times"));
}
