/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_scan: reads untrusted JSON (RFC 8259, UTF-8) through simdjson, with a C face. The whole
 * document is checked before the first value is given out. Values are small handles into the
 * scanner's own memory: they live until its next json_scan() or json_scanner_destroy().
 * One thread at a time.
 */
#ifndef BACKENDS_JSON_JSON_SCAN_H
#define BACKENDS_JSON_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/parse_error.h"
#include "backends/runtime/slice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* JSON_DEPTH_MAX: arrays and objects within each other; an empty one does not count. */
enum { JSON_PADDING = 64, JSON_DEPTH_MAX = 256 };

enum json_type {
    JSON_NONE, /* no value: what a lookup gives when the key is absent */
    JSON_NULL,
    JSON_BOOL,
    JSON_INT64,  /* an integer that fits int64_t */
    JSON_UINT64, /* an integer above INT64_MAX that fits uint64_t */
    JSON_DOUBLE, /* any other number; integers beyond uint64_t and doubles beyond 1.8e308 are
                    refused */
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

struct json_scanner;

/* A handle; copy it freely. The zeroed one is JSON_NONE. */
struct json_value {
    const void *document;
    size_t index;
};

struct json_member {
    struct slice key; /* unescaped */
    struct json_value value;
};

struct json_iterator { /* private */
    const void *document;
    size_t index;
    size_t end;
};

struct json_scanner *json_scanner_create(void);
void json_scanner_destroy(struct json_scanner *scanner);

/*
 * Reads text. JSON_PADDING bytes behind its end must be readable (any content). -EINVAL: not JSON,
 * error says where and why; -ENOMEM. Memory taken for a document above 1 MiB is given back by
 * json_scanner_trim().
 */
MUST_CHECK int json_scan(struct json_scanner *scanner, struct slice text, struct json_value *root,
                         struct parse_error *error);

/* The same for text without padding: copies it first. For small inputs. */
MUST_CHECK int json_scan_copy(struct json_scanner *scanner, struct slice text,
                              struct json_value *root, struct parse_error *error);

/* Gives back what a large document took. Handles of it are dead afterwards. */
void json_scanner_trim(struct json_scanner *scanner);

enum json_type json_type(struct json_value value);

/* Each expects a value of its own type; of another one it gives 0, false, {NULL, 0}. */
struct slice json_string(struct json_value value); /* unescaped UTF-8, may hold NUL */
bool json_bool(struct json_value value);
int64_t json_int64(struct json_value value); /* of JSON_UINT64: INT64_MAX */
double json_double(struct json_value value); /* of any number */
size_t json_count(struct json_value value);  /* elements or members; 2^24 - 1 stands for more */

/* The first member of that name; JSON_NONE if there is none or value is no object. */
struct json_value json_get(struct json_value value, const char *key);

/* Iteration in document order; over another type it ends at once. */
struct json_iterator json_iterate(struct json_value value);
bool json_next_element(struct json_iterator *iterator, struct json_value *element);
bool json_next_member(struct json_iterator *iterator, struct json_member *member);

#ifdef __cplusplus
}
#endif

#endif
