/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/runtime/near_name.h"

struct unit {
    const char *suffix;
    uint64_t factor;
};

/* Largest first, as writing tries them; the first with factor 1 is what a bare number means. */
static const struct unit duration_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
static const struct unit byte_units[] = {
    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};
static const struct unit no_units[] = {{"", 1}};

struct units {
    const struct unit *units;
    size_t count;
};

static struct units units_of(enum option_kind kind)
{
    if (kind == OPTION_DURATION)
        return (struct units){duration_units, array_count(duration_units)};
    if (kind == OPTION_BYTES)
        return (struct units){byte_units, array_count(byte_units)};
    return (struct units){no_units, array_count(no_units)};
}

static bool find_factor(enum option_kind kind, struct slice suffix, uint64_t *factor)
{
    struct units units = units_of(kind);

    *factor = 1;
    if (suffix.len == 0)
        return true;
    for (size_t i = 0; i < units.count; i++) {
        if (slice_eq_nocase(suffix, slice_of_string(units.units[i].suffix))) {
            *factor = units.units[i].factor;
            return true;
        }
    }
    return false;
}

/* "; the default is 8080" behind len bytes of the advice, where there is one to name. */
static void add_default(const struct option *option, struct option_complaint *complaint, size_t len)
{
    size_t room = sizeof complaint->advice;

    if (option->default_text != NULL && option->default_text[0] != '\0' && len < room)
        snprintf(complaint->advice + len, room - len, "; the default is %s", option->default_text);
}

/* Behind len bytes of advice: "write 10ms to 10m, as in 250ms, 10s, 5m or 1h; a bare number is
 * milliseconds; the default ..."
 */
static void advise_number(const struct option *option, struct option_complaint *complaint,
                          size_t len)
{
    static const char *const forms[] = {
        [OPTION_DURATION] = ", as in 250ms, 10s, 5m or 1h; a bare number is milliseconds",
        [OPTION_BYTES] = ", as in 64KiB, 32MiB or 1GiB; a bare number is bytes",
    };
    bool has_form = option->kind == OPTION_DURATION || option->kind == OPTION_BYTES;
    char least[32], most[32];
    size_t room = sizeof complaint->advice - len;

    option_value_write(option, option->min, least);
    option_value_write(option, option->max, most);
    len += (size_t)snprintf(complaint->advice + len, room, "write %s to %s%s%s%s", least, most,
                            has_form || option->unit[0] == '\0' ? "" : " ",
                            has_form ? "" : option->unit, has_form ? forms[option->kind] : "");
    add_default(option, complaint, len);
}

/* The unit that an unknown suffix most likely meant: "sec" is s, "MB" is MiB. NULL: none. */
static const char *meant_unit(enum option_kind kind, struct slice suffix)
{
    struct units units = units_of(kind);

    while (suffix.len > 0 && suffix.ptr[0] == ' ')
        suffix = slice_skip(suffix, 1);
    if (kind == OPTION_DURATION && suffix.len >= 3 && strncasecmp(suffix.ptr, "mil", 3) == 0)
        return "ms";
    for (size_t i = 0; i < units.count && suffix.len > 0; i++) {
        struct slice unit = slice_of_string(units.units[i].suffix);

        if (unit.len > 0 && strncasecmp(suffix.ptr, unit.ptr, 1) == 0)
            return unit.ptr;
    }
    return NULL;
}

static int refuse_suffix(const struct option *option, struct slice text, size_t digits,
                         struct option_complaint *complaint)
{
    struct slice suffix = slice_skip(text, digits);
    const char *meant = meant_unit(option->kind, suffix);
    bool is_fraction = suffix.ptr[0] == '.' || suffix.ptr[0] == 'e';
    size_t len = 0;

    snprintf(complaint->what, sizeof complaint->what,
             is_fraction                        ? "is not a whole number"
             : units_of(option->kind).count > 1 ? "has no unit that is known"
                                                : "is not a number");
    /* Digits that do not fit here are out of range in any unit. */
    if (!is_fraction && meant != NULL)
        len = (size_t)snprintf(complaint->advice, sizeof complaint->advice,
                               "did you mean %.*s%s? Else ", (int)(digits < 20 ? digits : 20),
                               text.ptr, meant);
    advise_number(option, complaint, len);
    return -EINVAL;
}

static int read_number(const struct option *option, struct slice text, uint64_t *number,
                       struct option_complaint *complaint)
{
    uint64_t factor, value = 0;
    bool is_overflow = false;
    size_t digits = 0;

    for (; digits < text.len && text.ptr[digits] >= '0' && text.ptr[digits] <= '9'; digits++)
        is_overflow |= __builtin_mul_overflow(value, 10, &value) ||
                       __builtin_add_overflow(value, (uint64_t)(text.ptr[digits] - '0'), &value);
    if (digits == 0) {
        snprintf(complaint->what, sizeof complaint->what, "is not a number");
        advise_number(option, complaint, 0);
        return -EINVAL;
    }
    if (!find_factor(option->kind, slice_skip(text, digits), &factor))
        return refuse_suffix(option, text, digits, complaint);
    is_overflow |= __builtin_mul_overflow(value, factor, &value);
    if (is_overflow || value < option->min || value > option->max) {
        /* A bare 5 where 5 s was meant is the likeliest way to get here. */
        snprintf(complaint->what, sizeof complaint->what, "is out of range%s",
                 option->kind == OPTION_DURATION && digits == text.len
                     ? ": without a unit it is milliseconds"
                     : "");
        advise_number(option, complaint, 0);
        return -EINVAL;
    }
    *number = value;
    return 0;
}

static int read_bool(const struct option *option, struct slice text, uint64_t *number,
                     struct option_complaint *complaint)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    int len;

    for (size_t i = 0; i < array_count(words); i++) {
        if (slice_eq_nocase(text, slice_of_string(words[i]))) {
            *number = i % 2;
            return 0;
        }
    }
    snprintf(complaint->what, sizeof complaint->what, "is neither true nor false");
    len = snprintf(complaint->advice, sizeof complaint->advice, "write true or false");
    add_default(option, complaint, (size_t)len);
    return -EINVAL;
}

/* Place of text in the words of option, or a complaint that lists them. */
static int find_word(const struct option *option, struct slice text, uint64_t *place,
                     struct option_complaint *complaint)
{
    const char *nearest = NULL;
    size_t nearest_cost = NEAR_NAME_FAR, room = sizeof complaint->advice, len = 0;

    for (size_t i = 0; option->words[i] != NULL; i++) {
        struct slice word = slice_of_string(option->words[i]);
        size_t cost = near_name_cost(text, word);

        if (slice_eq(text, word)) {
            *place = i;
            return 0;
        }
        if (cost < nearest_cost) {
            nearest = option->words[i];
            nearest_cost = cost;
        }
    }
    snprintf(complaint->what, sizeof complaint->what, "is not known");
    complaint->advice[0] = '\0';
    if (nearest != NULL)
        len = (size_t)snprintf(complaint->advice, room, "did you mean %s? ", nearest);
    for (size_t i = 0; option->words[i] != NULL && len < room; i++)
        len += (size_t)snprintf(complaint->advice + len, room - len, "%s%s",
                                i > 0             ? ", "
                                : nearest == NULL ? "write one of "
                                                  : "There are ",
                                option->words[i]);
    add_default(option, complaint, len);
    return -EINVAL;
}

int option_value_check_word(const struct option *option, struct slice text,
                            struct option_complaint *complaint)
{
    uint64_t place;

    return option->words == NULL ? 0 : find_word(option, text, &place, complaint);
}

int option_value_read(const struct option *option, struct slice text, uint64_t *number,
                      struct option_complaint *complaint)
{
    switch (option->kind) {
    case OPTION_INTEGER:
    case OPTION_DURATION:
    case OPTION_BYTES:
        return read_number(option, text, number, complaint);
    case OPTION_BOOL:
        return read_bool(option, text, number, complaint);
    case OPTION_ENUM:
        return find_word(option, text, number, complaint);
    case OPTION_TEXT:
    case OPTION_WORD:
    case OPTION_LIST:
        break;
    }
    abort(); /* a text is no number: the caller read the row wrongly */
}

void option_value_write(const struct option *option, uint64_t number, char text[32])
{
    struct units units = units_of(option->kind);
    size_t i = 0;

    while (number == 0 ? units.units[i].factor != 1 : number % units.units[i].factor != 0)
        i++;
    snprintf(text, 32, "%" PRIu64 "%s", number / units.units[i].factor, units.units[i].suffix);
}
