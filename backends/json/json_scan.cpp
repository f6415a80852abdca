/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_scan.h"

#include "backends/json/json_depth.h"
#include "backends/json/json_locate.h"

#include <simdjson.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <type_traits>

/*
 * DESIGN
 *
 * Speaks to simdjson in the dialect that 3.0 and 3.12 share. Its DOM suits us better
 * than On-Demand: the whole text is checked before a router acts on any of it, values may be read
 * in any order and twice, and strings come out unescaped. A value is the DOM's own element
 * (document and tape index), copied bit by bit through the C boundary; an iterator likewise.
 *
 * The DOM does not say where a text is broken. Only then json_locate() looks a second time, slowly.
 *
 * simdjson takes memory for each bracket of a text before it looks how deep they nest: 64 MiB of
 * `[` would cost 256 MiB and 150 ms. Texts above KEPT_BYTES have their depth looked at first.
 *
 * Memory grows by doubling, up to KEPT_BYTES, and stays, so that a warm scanner takes none; what a
 * document above KEPT_BYTES took is given back by json_scanner_trim(). Built without exceptions and
 * RTTI.
 */
using simdjson::dom::element;

namespace
{

static_assert(int(JSON_LOCATE_DEPTH_MAX) == int(JSON_DEPTH_MAX), "both looks go as deep");

constexpr size_t FIRST_BYTES = 16 << 10;
constexpr size_t KEPT_BYTES = 1 << 20;

static_assert(sizeof(json_value) == sizeof(element), "a value is an element");
static_assert(std::is_trivially_copyable<element>::value, "values pass as plain bytes");
static_assert(sizeof(simdjson::dom::array::iterator) == sizeof(json_value), "so do iterators");
static_assert(sizeof(simdjson::dom::object::iterator) == sizeof(json_value), "so do iterators");
static_assert(static_cast<size_t>(JSON_PADDING) >= simdjson::SIMDJSON_PADDING,
              "simdjson overreads");

/* Two words either way: {document, index}. */
template <typename To, typename From> To same_bytes(const From &from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;

    std::memcpy(static_cast<void *>(&to), static_cast<const void *>(&from), sizeof to);
    return to;
}

bool is_array(element e)
{
    return e.type() == simdjson::dom::element_type::ARRAY;
}

bool is_object(element e)
{
    return e.type() == simdjson::dom::element_type::OBJECT;
}

template <typename Container> Container contents(element e)
{
    Container container;
    simdjson::error_code status = e.get(container);

    (void)status; /* the caller has looked at the type */
    return container;
}

struct slice slice_of_view(std::string_view view)
{
    return slice_of(view.data(), view.size());
}

/* The end of an iteration, and whether it is over members, in one word. */
size_t pack_end(size_t index, bool over_members)
{
    return index << 1 | (over_members ? 1 : 0);
}

} // namespace

struct json_scanner {
    simdjson::dom::parser parser;
    simdjson::dom::document document;
    size_t capacity;
    char *copy; /* of a text that came without padding */
    size_t copy_capacity;
};

static size_t doubled_until(size_t capacity, size_t len)
{
    while (capacity < len)
        capacity *= 2;
    return capacity;
}

/* simdjson takes fourteen times a text's room: no more than needed where that is much. */
static size_t rounded_up(size_t len)
{
    return (len + KEPT_BYTES - 1) / KEPT_BYTES * KEPT_BYTES;
}

static int reserve(json_scanner *scanner, size_t len)
{
    size_t capacity = len > KEPT_BYTES ? rounded_up(len) : doubled_until(FIRST_BYTES, len);

    if (capacity <= scanner->capacity)
        return 0;
    scanner->capacity = 0;
    /* simdjson refuses the level it is given. */
    if (scanner->parser.allocate(capacity, JSON_DEPTH_MAX + 1) != simdjson::SUCCESS ||
        scanner->document.allocate(capacity) != simdjson::SUCCESS)
        return -ENOMEM;
    scanner->capacity = capacity;
    return 0;
}

json_scanner *json_scanner_create(void)
{
    json_scanner *scanner = new (std::nothrow) json_scanner();

    if (scanner == nullptr)
        abort(); /* out of memory at boot: see style.md, errors */
    return scanner;
}

void json_scanner_destroy(json_scanner *scanner)
{
    if (scanner != nullptr)
        free(scanner->copy);
    delete scanner;
}

void json_scanner_trim(json_scanner *scanner)
{
    if (scanner->capacity > KEPT_BYTES) {
        scanner->parser = simdjson::dom::parser();
        scanner->document = simdjson::dom::document();
        scanner->capacity = 0;
    }
    if (scanner->copy_capacity > KEPT_BYTES) {
        free(scanner->copy);
        scanner->copy = nullptr;
        scanner->copy_capacity = 0;
    }
}

static bool starts_with_bom(struct slice text)
{
    return slice_starts_with(text, SLICE("\xEF\xBB\xBF"));
}

static int refuse(struct slice text, parse_error *error)
{
    if (!json_locate(text, error)) {
        error->offset = 0;
        snprintf(error->message, sizeof error->message, "This is not JSON that can be read.");
    }
    return -EINVAL;
}

int json_scan(json_scanner *scanner, struct slice text, json_value *root, parse_error *error)
{
    element document_root;
    simdjson::error_code status;

    *root = json_value{nullptr, 0};
    *error = parse_error{0, ""};
    if (starts_with_bom(text)) /* newer versions of simdjson would let it pass, engines do not */
        return refuse(text, error);
    if (text.len > KEPT_BYTES && json_is_deeper(text, JSON_DEPTH_MAX + 1)) /* the last: empty */
        return refuse(text, error);
    if (reserve(scanner, text.len) < 0)
        return -ENOMEM;
    status = scanner->parser
                 .parse_into_document(scanner->document, text.len > 0 ? text.ptr : "", text.len,
                                      text.len == 0)
                 .get(document_root);
    if (status == simdjson::MEMALLOC)
        return -ENOMEM;
    if (status != simdjson::SUCCESS)
        return refuse(text, error);
    *root = same_bytes<json_value>(document_root);
    return 0;
}

int json_scan_copy(json_scanner *scanner, struct slice text, json_value *root, parse_error *error)
{
    size_t needed = text.len + JSON_PADDING;

    if (scanner->copy_capacity < needed) {
        size_t capacity = doubled_until(4096, needed);
        char *copy = static_cast<char *>(realloc(scanner->copy, capacity));

        if (copy == nullptr)
            return -ENOMEM;
        scanner->copy = copy;
        scanner->copy_capacity = capacity;
    }
    if (text.len > 0)
        memcpy(scanner->copy, text.ptr, text.len);
    memset(scanner->copy + text.len, 0, JSON_PADDING);
    return json_scan(scanner, slice_of(scanner->copy, text.len), root, error);
}

enum json_type json_type(json_value value)
{
    if (value.document == nullptr)
        return JSON_NONE;
    switch (same_bytes<element>(value).type()) {
    case simdjson::dom::element_type::ARRAY:
        return JSON_ARRAY;
    case simdjson::dom::element_type::OBJECT:
        return JSON_OBJECT;
    case simdjson::dom::element_type::INT64:
        return JSON_INT64;
    case simdjson::dom::element_type::UINT64:
        return JSON_UINT64;
    case simdjson::dom::element_type::DOUBLE:
        return JSON_DOUBLE;
    case simdjson::dom::element_type::STRING:
        return JSON_STRING;
    case simdjson::dom::element_type::BOOL:
        return JSON_BOOL;
    default:
        return JSON_NULL;
    }
}

struct slice json_string(json_value value)
{
    std::string_view view;

    if (value.document == nullptr || same_bytes<element>(value).get(view) != simdjson::SUCCESS)
        return slice_of(nullptr, 0);
    return slice_of_view(view);
}

bool json_bool(json_value value)
{
    bool answer;

    return value.document != nullptr &&
           same_bytes<element>(value).get(answer) == simdjson::SUCCESS && answer;
}

int64_t json_int64(json_value value)
{
    int64_t number;

    switch (json_type(value)) {
    case JSON_INT64:
        return same_bytes<element>(value).get(number) == simdjson::SUCCESS ? number : 0;
    case JSON_UINT64:
        return INT64_MAX;
    default:
        return 0;
    }
}

double json_double(json_value value)
{
    double number;

    if (value.document == nullptr || same_bytes<element>(value).get(number) != simdjson::SUCCESS)
        return 0;
    return number;
}

size_t json_count(json_value value)
{
    if (value.document == nullptr)
        return 0;
    element e = same_bytes<element>(value);
    if (is_array(e))
        return contents<simdjson::dom::array>(e).size();
    return is_object(e) ? contents<simdjson::dom::object>(e).size() : 0;
}

json_value json_get(json_value value, const char *key)
{
    std::string_view wanted(key);

    if (value.document == nullptr || !is_object(same_bytes<element>(value)))
        return json_value{nullptr, 0};
    auto object = contents<simdjson::dom::object>(same_bytes<element>(value));
    for (auto at = object.begin(), end = object.end(); at != end; ++at)
        if (at.key_equals(wanted))
            return same_bytes<json_value>(at.value());
    return json_value{nullptr, 0};
}

template <typename Container> static json_iterator iterate(element e, bool over_members)
{
    Container container = contents<Container>(e);
    json_value begin = same_bytes<json_value>(container.begin());
    json_value end = same_bytes<json_value>(container.end());

    return json_iterator{begin.document, begin.index, pack_end(end.index, over_members)};
}

json_iterator json_iterate(json_value value)
{
    if (value.document != nullptr) {
        element e = same_bytes<element>(value);
        if (is_array(e))
            return iterate<simdjson::dom::array>(e, false);
        if (is_object(e))
            return iterate<simdjson::dom::object>(e, true);
    }
    return json_iterator{nullptr, 0, 0};
}

bool json_next_element(json_iterator *iterator, json_value *value)
{
    if (pack_end(iterator->index, false) == iterator->end || (iterator->end & 1) != 0)
        return false;
    auto at =
        same_bytes<simdjson::dom::array::iterator>(json_value{iterator->document, iterator->index});

    *value = same_bytes<json_value>(*at);
    iterator->index = same_bytes<json_value>(++at).index;
    return true;
}

bool json_next_member(json_iterator *iterator, json_member *member)
{
    if (pack_end(iterator->index, true) == iterator->end || (iterator->end & 1) == 0)
        return false;
    auto at = same_bytes<simdjson::dom::object::iterator>(
        json_value{iterator->document, iterator->index});

    member->key = slice_of_view(at.key());
    member->value = same_bytes<json_value>(at.value());
    iterator->index = same_bytes<json_value>(++at).index;
    return true;
}
