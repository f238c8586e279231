// Ids and values of Python lists, looked up in an index's tables: tens of nanoseconds an entry.

#include "requests.h"

#include <algorithm>
#include <string_view>

#include "hash.h"
#include "offsets.h"

namespace {

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

}  // namespace

void bind_requests(nb::module_& module) {
    module.def("find_texts", &find_texts, nb::arg("text"), nb::arg("offsets"), nb::arg("hashes"),
               nb::arg("numbers"), nb::arg("texts"));
    module.def("find_integers", &find_integers, nb::arg("values"), nb::arg("numbers"),
               nb::arg("integers"), nb::arg("kind"));
}
