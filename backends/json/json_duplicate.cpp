/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_duplicate.h"

#include <simdjson.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

/*
 * DESIGN
 *
 * Each body pays for this, so a usual object costs some twenty instructions a key: keys are told
 * apart by one of 64 bits made of their length and ends, and only those of the same bit are
 * compared. An object of many keys is sorted instead, which no choice of keys can make quadratic.
 * For the same reason the document is read as it lies, by simdjson's description of its tape:
 *
 *   a word each:   type (8 bits) | payload (56)       an object: { key value key value ... }
 *   { [            32 low bits: the place behind its end
 *   "              where its bytes lie: their count in 4 bytes, then they
 *   l u d          a number, which takes a second word
 *
 * The depth of the recursion is JSON_DEPTH_MAX. Where it is, is known by links in its frames, and
 * written out only when there is something to tell.
 */
namespace
{

constexpr size_t FEW_KEYS = 16;
constexpr uint64_t PAYLOAD = (uint64_t(1) << 56) - 1;

struct place { /* one step of the way from the root */
    const place *parent;
    std::string_view key; /* of an object */
    size_t index;         /* of an array, where key has no data */
};

struct search {
    const uint64_t *tape;
    const uint8_t *strings;
    char *path; /* of what was found */
    bool has_no_memory;
};

char type_at(const search &search, size_t at)
{
    return char(search.tape[at] >> 56);
}

bool is_container(char type)
{
    return type == '{' || type == '[';
}

/* Of a container: the place behind its end. */
size_t behind(const search &search, size_t at)
{
    return uint32_t(search.tape[at]);
}

size_t next_of(const search &search, size_t at, char type)
{
    if (is_container(type))
        return behind(search, at);
    return at + (type == 'l' || type == 'u' || type == 'd' ? 2 : 1);
}

std::string_view key_at(const search &search, size_t at)
{
    const uint8_t *bytes = search.strings + (search.tape[at] & PAYLOAD);
    uint32_t len;

    std::memcpy(&len, bytes, sizeof len);
    return std::string_view(reinterpret_cast<const char *>(bytes + sizeof len), len);
}

bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '$';
}

size_t append(char *path, size_t len, std::string_view text)
{
    for (size_t i = 0; i < text.size() && len < JSON_PATH_BYTES_MAX - 1; i++)
        path[len++] = is_plain(text[i]) ? text[i] : '?';
    path[len] = '\0';
    return len;
}

size_t write_place(char *path, const place *at)
{
    size_t len = at->parent != nullptr ? write_place(path, at->parent) : 0;

    if (at->key.data() == nullptr) {
        int count = snprintf(path + len, JSON_PATH_BYTES_MAX - len, "[%zu]", at->index);

        return std::min(len + size_t(count), size_t(JSON_PATH_BYTES_MAX - 1));
    }
    if (len > 0 && len < JSON_PATH_BYTES_MAX - 1)
        path[len++] = '.';
    return append(path, len, at->key);
}

/* Says where the pair is; parent NULL: at the root. */
bool found(const search &search, const place *parent, std::string_view key)
{
    place last{parent, key, 0};

    write_place(search.path, &last);
    return true;
}

uint64_t bit_of(std::string_view key)
{
    if (key.empty())
        return 1;
    return uint64_t(1) << ((key.size() + 5 * unsigned(key.front()) + 9 * unsigned(key.back())) %
                           64);
}

/* Whether a member of the object between first and end, its key's own place, is named key. */
bool is_among(const search &search, size_t first, size_t end, std::string_view key)
{
    for (size_t at = first; at < end; at = next_of(search, at + 1, type_at(search, at + 1)))
        if (key_at(search, at) == key)
            return true;
    return false;
}

bool has_duplicate_of_many(search &search, size_t object, size_t count, const place *parent)
{
    auto *keys = static_cast<std::string_view *>(calloc(count, sizeof(std::string_view)));
    bool is_found = false;
    size_t at = object + 1;

    if (keys == nullptr) {
        search.has_no_memory = true;
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = key_at(search, at);
        at = next_of(search, at + 1, type_at(search, at + 1));
    }
    std::sort(keys, keys + count);
    const auto *pair = std::adjacent_find(keys, keys + count);
    if (pair != keys + count)
        is_found = found(search, parent, *pair);
    free(keys);
    return is_found;
}

bool is_in(search &search, size_t container, const place *parent);

bool is_in_array(search &search, size_t array, const place *parent)
{
    size_t end = behind(search, array) - 1;
    size_t index = 0;

    for (size_t at = array + 1; at < end; index++) {
        char type = type_at(search, at);

        if (is_container(type)) {
            place here{parent, {}, index};

            if (is_in(search, at, &here))
                return true;
        }
        at = next_of(search, at, type);
    }
    return false;
}

bool is_in_object(search &search, size_t object, const place *parent)
{
    size_t end = behind(search, object) - 1;
    size_t count = 0;
    uint64_t seen = 0;

    for (size_t at = object + 1; at < end; count++) {
        std::string_view key = key_at(search, at);
        char type = type_at(search, at + 1);

        if (count < FEW_KEYS) {
            uint64_t bit = bit_of(key);

            if ((seen & bit) != 0 && is_among(search, object + 1, at, key))
                return found(search, parent, key);
            seen |= bit;
        }
        if (is_container(type)) {
            place here{parent, key, 0};

            if (is_in(search, at + 1, &here))
                return true;
        }
        at = next_of(search, at + 1, type);
    }
    return count > FEW_KEYS && has_duplicate_of_many(search, object, count, parent);
}

bool is_in(search &search, size_t container, const place *parent)
{
    return type_at(search, container) == '[' ? is_in_array(search, container, parent)
                                             : is_in_object(search, container, parent);
}

} // namespace

int json_find_duplicate(json_value value, char path[JSON_PATH_BYTES_MAX])
{
    const auto *document = static_cast<const simdjson::dom::document *>(value.document);
    bool is_found;

    path[0] = '\0';
    if (document == nullptr)
        return 0;
    search search{document->tape.get(), document->string_buf.get(), path, false};
    if (!is_container(type_at(search, value.index)))
        return 0;
    is_found = is_in(search, value.index, nullptr);
    return search.has_no_memory ? -ENOMEM : is_found ? 1 : 0;
}
