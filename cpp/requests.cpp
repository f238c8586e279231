// What requests carry, as numbers: ids and values looked up in an index's tables, histories read.
//
// These walk Python lists, so the interpreter lock is held; each entry costs tens of nanoseconds. A
// history that is in any way unusual is left to Python, which says what is wrong with it, if anything.

#include "requests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "hash.h"
#include "offsets.h"

namespace {

constexpr double kMaxTime = 1e11;  // seconds, as MAX_TIME_S of grace.model.fields

// The text's UTF-8 bytes; false, and no Python error, if UTF-8 cannot hold it.
bool utf8(PyObject* text, std::string_view& bytes) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) {
        PyErr_Clear();
        return false;
    }
    bytes = {data, static_cast<size_t>(size)};
    return true;
}

// The number of each text of a TextTable, or -1; what is no text is never found.
Out1<int64_t> find_texts(In1<uint8_t> text, In1<int64_t> offsets, In1<int64_t> hashes,
                         const Offsets& numbers, nb::list texts) {
    const OffsetReader number_of(numbers);
    const int64_t *first = hashes.data(), *last = first + hashes.shape(0);
    std::vector<int64_t> found(texts.size(), -1);
    for (size_t i = 0; i < found.size(); ++i) {
        PyObject* wanted = PyList_GET_ITEM(texts.ptr(), static_cast<Py_ssize_t>(i));
        std::string_view bytes;
        if (!PyUnicode_Check(wanted) || !utf8(wanted, bytes)) continue;
        const auto hash = static_cast<int64_t>(xxh64(bytes));
        // Two texts may share a hash: their entries are neighbours.
        for (const int64_t* at = std::lower_bound(first, last, hash); at != last && *at == hash; ++at) {
            const int64_t number = number_of[static_cast<size_t>(at - first)];
            const int64_t begin = offsets.data()[number], end = offsets.data()[number + 1];
            const auto* stored = reinterpret_cast<const char*>(text.data()) + begin;
            if (bytes == std::string_view(stored, static_cast<size_t>(end - begin))) found[i] = number;
        }
    }
    return to_numpy(std::move(found));
}

// The number of each integer of an IntegerTable, or -1; what is no int64 is never found. `kind` is
// numpy's integer, whose values are no Python integers.
Out1<int64_t> find_integers(In1<int64_t> values, const Offsets& numbers, nb::list integers,
                            nb::handle kind) {
    const OffsetReader number_of(numbers);
    const size_t size = values.shape(0);
    std::vector<int64_t> found(integers.size(), -1);
    for (size_t i = 0; i < found.size(); ++i) {
        nb::object item = nb::borrow(PyList_GET_ITEM(integers.ptr(), static_cast<Py_ssize_t>(i)));
        if (!PyLong_Check(item.ptr())) {
            if (!nb::isinstance(item, kind)) continue;
            item = nb::steal(PyNumber_Index(item.ptr()));
        } else if (PyBool_Check(item.ptr())) {
            continue;
        }
        int overflow;
        const int64_t wanted = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
        if (overflow != 0) continue;
        size_t low = 0, high = size;
        while (low < high) {
            const size_t middle = low + (high - low) / 2;
            if (values.data()[number_of[middle]] < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < size && values.data()[number_of[low]] == wanted) found[i] = number_of[low];
    }
    return to_numpy(std::move(found));
}

// Days from 1970-01-01 to a day of the Gregorian calendar (Howard Hinnant's formula).
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    const int64_t era = (year >= 0 ? year : year - 399) / 400, of_era = year - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// Reads a fixed number of digits; false if there are others.
bool digits(std::string_view text, size_t at, size_t count, int64_t& value) {
    if (at + count > text.size()) return false;
    value = 0;
    for (size_t i = at; i < at + count; ++i) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
    }
    return true;
}

// Seconds since 1970 of YYYY-MM-DDTHH:MM:SS, maybe .ffffff, then Z or +hh:mm; false for any other form.
bool iso_seconds(std::string_view text, double& seconds) {
    constexpr int64_t kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year, month, day, hour, minute, second, micros = 0, shift = 0;
    if (!digits(text, 0, 4, year) || !digits(text, 5, 2, month) || !digits(text, 8, 2, day) ||
        !digits(text, 11, 2, hour) || !digits(text, 14, 2, minute) || !digits(text, 17, 2, second) ||
        text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':')
        return false;
    size_t at = 19;
    if (at < text.size() && text[at] == '.') {
        if (!digits(text, at + 1, 6, micros)) return false;
        at += 7;
    }
    if (at + 6 == text.size() && (text[at] == '+' || text[at] == '-')) {
        int64_t hours, minutes;
        if (!digits(text, at + 1, 2, hours) || text[at + 3] != ':' || !digits(text, at + 4, 2, minutes) ||
            hours > 23 || minutes > 59)
            return false;
        shift = (text[at] == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
    } else if (at + 1 != text.size() || text[at] != 'Z') {
        return false;
    }
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (year < 1 || month < 1 || month > 12 || day < 1 ||
        day > kDays[month - 1] + (month == 2 && leap) || hour > 23 || minute > 59 || second > 59)
        return false;
    const int64_t whole =
        days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - shift;
    const int64_t total = whole * 1'000'000 + micros;
    if (std::abs(total) >= int64_t{1} << 53) return false;  // would be rounded twice
    seconds = static_cast<double>(total) / 1e6;
    return true;
}

bool time_seconds(PyObject* value, double& seconds) {
    if (PyUnicode_CheckExact(value)) {
        std::string_view text;
        return utf8(value, text) && iso_seconds(text, seconds);
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        const int64_t whole = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0) return false;
        seconds = static_cast<double>(whole);
    } else if (PyFloat_CheckExact(value)) {
        seconds = PyFloat_AS_DOUBLE(value);
    } else {
        return false;
    }
    return std::abs(seconds) <= kMaxTime;  // false for NaN, too
}

// The events of a history, [{ad_id, action?, at?}]: (ad ids, embedding rows of the actions, seconds
// since 1970 or NaN), or None if any of it is not in its usual form. `rows` numbers the actions.
nb::object read_events(nb::list events, nb::dict rows, int64_t missing, int64_t unknown) {
    static PyObject* const kAdId = PyUnicode_InternFromString("ad_id");
    static PyObject* const kAction = PyUnicode_InternFromString("action");
    static PyObject* const kAt = PyUnicode_InternFromString("at");
    const size_t size = events.size();
    std::vector<int64_t> actions(size, missing);
    std::vector<double> times(size, std::numeric_limits<double>::quiet_NaN());
    nb::list ad_ids;
    double newest = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < size; ++i) {
        PyObject* event = PyList_GET_ITEM(events.ptr(), static_cast<Py_ssize_t>(i));
        if (!PyDict_CheckExact(event)) return nb::none();
        PyObject *ad_id = PyDict_GetItem(event, kAdId), *action = PyDict_GetItem(event, kAction),
                 *at = PyDict_GetItem(event, kAt);
        const Py_ssize_t known = (ad_id != nullptr) + (action != nullptr) + (at != nullptr);
        if (ad_id == nullptr || PyDict_GET_SIZE(event) != known) return nb::none();
        if (!PyUnicode_CheckExact(ad_id) && !PyLong_CheckExact(ad_id)) return nb::none();
        ad_ids.append(nb::borrow(ad_id));
        if (action != nullptr && action != Py_None) {
            std::string_view text;
            if (!PyUnicode_CheckExact(action)) return nb::none();
            PyObject* row = PyDict_GetItem(rows.ptr(), action);
            if (row == nullptr && !utf8(action, text)) return nb::none();
            actions[i] = row == nullptr ? unknown : PyLong_AsLongLong(row);
        }
        if (at != nullptr && at != Py_None) {
            if (!time_seconds(at, times[i]) || times[i] < newest) return nb::none();
            newest = times[i];
        }
    }
    return nb::make_tuple(ad_ids, to_numpy(std::move(actions)), to_numpy(std::move(times)));
}

}  // namespace

void bind_requests(nb::module_& module) {
    module.def("find_texts", &find_texts, nb::arg("text"), nb::arg("offsets"), nb::arg("hashes"),
               nb::arg("numbers"), nb::arg("texts"));
    module.def("find_integers", &find_integers, nb::arg("values"), nb::arg("numbers"),
               nb::arg("integers"), nb::arg("kind"));
    module.def("read_events", &read_events, nb::arg("events"), nb::arg("rows"), nb::arg("missing"),
               nb::arg("unknown"));
}
