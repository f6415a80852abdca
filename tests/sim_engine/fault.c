/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/fault.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim_engine/random.h"

enum fault_arg { FAULT_ARG_NONE, FAULT_ARG_COUNT, FAULT_ARG_STATUS };

static const struct {
    const char *name;
    enum fault_arg arg;
} kinds[] = {
#define FAULT_TABLE(kind, name, arg, help) [kind] = {name, arg},
    FAULT_KINDS(FAULT_TABLE)
#undef FAULT_TABLE
};
static_assert(array_count(kinds) == FAULT_KIND_COUNT, "every fault has a row");

const char *fault_name(enum fault_kind kind)
{
    assert(kind < FAULT_KIND_COUNT);
    return kinds[kind].name;
}

const char *fault_help(void)
{
#define FAULT_HELP(kind, name, arg, help) "  " name ": " help "\n"
    return FAULT_KINDS(FAULT_HELP);
#undef FAULT_HELP
}

bool fault_is_inner(enum fault_kind kind)
{
    switch (kind) {
    case FAULT_KILL_AT_LOAD:
    case FAULT_KILL_AT_LOOKUP:
    case FAULT_KILL_AT_SAVE:
    case FAULT_KV_DROP:
    case FAULT_KV_DROP_HARD:
    case FAULT_KV_NO_REPLAY:
        return true;
    default:
        return false;
    }
}

/* A spec while it is read. */
struct fault_reader {
    struct slice spec;
    size_t at; /* of the part being read */
    struct parse_error *error;
};

static int fail(const struct fault_reader *reader, const char *message)
{
    reader->error->offset = reader->at;
    snprintf(reader->error->message, sizeof reader->error->message, "%s", message);
    return -EINVAL;
}

/* The part up to the next comma, split at its first '='. */
static void next_part(const struct fault_reader *reader, struct slice *key, struct slice *value)
{
    struct slice part = slice_skip(reader->spec, reader->at);
    const char *comma = part.len > 0 ? memchr(part.ptr, ',', part.len) : NULL;
    const char *equals;

    if (comma != NULL)
        part.len = (size_t)(comma - part.ptr);
    equals = part.len > 0 ? memchr(part.ptr, '=', part.len) : NULL;
    *key = part;
    *value = (struct slice){NULL, 0};
    if (equals != NULL) {
        key->len = (size_t)(equals - part.ptr);
        *value = slice_skip(part, key->len + 1);
    }
}

static int read_count(struct slice text, uint64_t *count)
{
    uint64_t sum = 0;

    if (text.len == 0 || text.len > 12)
        return -EINVAL;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return -EINVAL;
        sum = sum * 10 + (uint64_t)(text.ptr[i] - '0');
    }
    *count = sum;
    return 0;
}

static int read_share(struct slice text, double *share)
{
    char copy[32];
    char *end;

    if (text.len == 0 || text.len >= sizeof copy)
        return -EINVAL;
    memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    *share = strtod(copy, &end);
    return *end == '\0' && *share >= 0 && *share <= 1 ? 0 : -EINVAL;
}

static int read_kind(const struct fault_reader *reader, struct slice key, struct slice value,
                     struct fault *fault)
{
    size_t kind = 0;

    while (kind < FAULT_KIND_COUNT && !slice_eq(key, slice_of_string(kinds[kind].name)))
        kind++;
    if (kind == FAULT_KIND_COUNT)
        return fail(reader, "There is no fault of that name; --help lists them.");
    fault->kind = (enum fault_kind)kind;
    if (kinds[kind].arg == FAULT_ARG_NONE)
        return value.ptr == NULL ? 0 : fail(reader, "This fault takes no argument.");
    if (read_count(value, &fault->arg) < 0)
        return fail(reader, "This fault needs a whole number: KIND=N.");
    if (kinds[kind].arg == FAULT_ARG_STATUS && fault->arg != 400 && fault->arg != 429 &&
        fault->arg != 500 && fault->arg != 503)
        return fail(reader, "The status must be 400, 429, 500 or 503.");
    return 0;
}

static int read_which(const struct fault_reader *reader, enum fault_which which, struct slice value,
                      struct fault *fault)
{
    if (fault->which != FAULT_ALWAYS)
        return fail(reader, "Only one of every, nth and p may be given.");
    fault->which = which;
    if (which == FAULT_SHARE)
        return read_share(value, &fault->share) == 0
                   ? 0
                   : fail(reader, "p must be a number from 0 to 1.");
    if (read_count(value, &fault->number) < 0 || fault->number == 0)
        return fail(reader, "every and nth need a whole number from 1.");
    return 0;
}

static int read_condition(const struct fault_reader *reader, struct slice key, struct slice value,
                          struct fault *fault)
{
    if (slice_eq(key, SLICE("every")))
        return read_which(reader, FAULT_EVERY, value, fault);
    if (slice_eq(key, SLICE("nth")))
        return read_which(reader, FAULT_NTH, value, fault);
    if (slice_eq(key, SLICE("p")))
        return read_which(reader, FAULT_SHARE, value, fault);
    if (slice_eq(key, SLICE("how"))) {
        fault->by_reset = slice_eq(value, SLICE("rst"));
        return fault->by_reset || slice_eq(value, SLICE("fin"))
                   ? 0
                   : fail(reader, "how must be fin or rst.");
    }
    if (slice_eq(key, SLICE("when"))) {
        fault->when = slice_eq(value, SLICE("stream")) ? FAULT_WHEN_STREAM : FAULT_WHEN_PLAIN;
        return fault->when == FAULT_WHEN_STREAM || slice_eq(value, SLICE("plain"))
                   ? 0
                   : fail(reader, "when must be stream or plain.");
    }
    if (slice_eq(key, SLICE("port"))) {
        uint64_t port = 0;

        if (read_count(value, &port) < 0 || port == 0 || port > UINT16_MAX)
            return fail(reader, "port must be a whole number from 1 to 65535.");
        fault->port = (uint16_t)port;
        return 0;
    }
    if (slice_eq(key, SLICE("path"))) {
        if (value.len == 0 || value.len >= sizeof fault->path || value.ptr[0] != '/')
            return fail(reader, "path must begin with / and be shorter than 128 bytes.");
        memcpy(fault->path, value.ptr, value.len);
        fault->path[value.len] = '\0';
        return 0;
    }
    return fail(reader, "The conditions are how, path, port, every, nth, p and when.");
}

/* Each has a meaning with its kind. */
static int check_conditions(const struct fault_reader *reader, const struct fault *fault)
{
    if (fault->kind == FAULT_RESET && fault->when != FAULT_WHEN_ANY)
        return fail(reader, "reset acts before the body is read, so when has no meaning with it.");
    if (!fault_is_inner(fault->kind))
        return 0;
    if (fault->by_reset || fault->path[0] != '\0' || fault->when != FAULT_WHEN_ANY)
        return fail(reader, "how, path and when are of requests alone.");
    if (fault->kind == FAULT_KV_NO_REPLAY && fault->which != FAULT_ALWAYS)
        return fail(reader, "kv_no_replay is for all of them.");
    return 0;
}

int fault_parse(struct slice spec, struct fault *fault, struct parse_error *error)
{
    struct fault_reader reader = {.spec = spec, .error = error};
    struct slice key, value;
    int status;

    *fault = (struct fault){.which = FAULT_ALWAYS};
    next_part(&reader, &key, &value);
    status = read_kind(&reader, key, value, fault);
    while (status == 0) {
        size_t part_len = key.len + (value.ptr != NULL ? value.len + 1 : 0);

        if (reader.at + part_len == spec.len)
            break;
        reader.at += part_len + 1;
        next_part(&reader, &key, &value);
        status = read_condition(&reader, key, value, fault);
    }
    reader.at = 0;
    return status == 0 ? check_conditions(&reader, fault) : status;
}

/* Whether the next one of those it could hit is one it does. */
static bool hits_next(struct fault_rule *rule)
{
    const struct fault *fault = &rule->fault;

    rule->seen_count++;
    switch (fault->which) {
    case FAULT_EVERY:
        return rule->seen_count % fault->number == 0;
    case FAULT_NTH:
        return rule->seen_count == fault->number;
    case FAULT_SHARE:
        return random_share(&rule->random) < fault->share;
    case FAULT_ALWAYS:
        break;
    }
    return true;
}

bool fault_rule_hits(struct fault_rule *rule, struct slice target, bool is_stream)
{
    const struct fault *fault = &rule->fault;

    assert(!fault_is_inner(fault->kind));

    if (!slice_starts_with(target, slice_of_string(fault->path)))
        return false;
    if (fault->when != FAULT_WHEN_ANY && (fault->when == FAULT_WHEN_STREAM) != is_stream)
        return false;
    return hits_next(rule);
}

bool fault_rule_hits_inner(struct fault_rule *rule)
{
    assert(fault_is_inner(rule->fault.kind));

    return hits_next(rule);
}
