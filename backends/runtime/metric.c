/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/metric.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put(struct metric_writer *writer, struct slice text)
{
    if (writer->status == 0)
        writer->status = buf_append(writer->out, text);
}

static void put_string(struct metric_writer *writer, const char *text)
{
    put(writer, slice_of_string(text));
}

/* Backslash and newline are escaped everywhere, the quote in label values. */
static void put_escaped(struct metric_writer *writer, const char *text, bool has_quotes)
{
    while (*text != '\0') {
        size_t plain = strcspn(text, has_quotes ? "\\\n\"" : "\\\n");

        put(writer, slice_of(text, plain));
        text += plain;
        if (*text == '\0')
            break;
        put_string(writer, *text == '\n' ? "\\n" : *text == '"' ? "\\\"" : "\\\\");
        text++;
    }
}

/* The shortest decimal that reads back as the same double. */
static void format_double(double value, char text[32])
{
    if (isnan(value)) {
        snprintf(text, 32, "NaN");
    } else if (isinf(value)) {
        snprintf(text, 32, value > 0 ? "+Inf" : "-Inf");
    } else if (value == floor(value) && fabs(value) < 0x1p53) {
        snprintf(text, 32, "%" PRId64, (int64_t)value);
    } else {
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(text, 32, "%.*g", digits, value);
            if (strtod(text, NULL) == value)
                break;
        }
    }
}

/* name{labels} and, where bound is given, le as the last label. */
static void put_series(struct metric_writer *writer, const char *suffix,
                       struct metric_labels labels, const char *bound)
{
    put_string(writer, writer->name);
    put_string(writer, suffix);
    for (size_t i = 0; i < labels.count; i++) {
        put_string(writer, i == 0 ? "{" : ",");
        put_string(writer, labels.labels[i].name);
        put_string(writer, "=\"");
        put_escaped(writer, labels.labels[i].value, true);
        put_string(writer, "\"");
    }
    if (bound != NULL) {
        put_string(writer, labels.count == 0 ? "{le=\"" : ",le=\"");
        put_string(writer, bound);
        put_string(writer, "\"");
    }
    if (labels.count > 0 || bound != NULL)
        put_string(writer, "}");
    put_string(writer, " ");
}

static void put_u64(struct metric_writer *writer, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRIu64 "\n", value);
    put_string(writer, text);
}

static void put_double(struct metric_writer *writer, double value)
{
    char text[32];

    format_double(value, text);
    put_string(writer, text);
    put_string(writer, "\n");
}

void metric_writer_init(struct metric_writer *writer, struct buf *out)
{
    *writer = (struct metric_writer){.out = out};
}

void metric_family(struct metric_writer *writer, enum metric_kind kind, const char *name,
                   const char *help)
{
    static const char *const kinds[] = {
        [METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge", [METRIC_HISTOGRAM] = "histogram"};
    size_t len = strlen(name);

    assert(len > 0 && len < sizeof writer->name);

    memcpy(writer->name, name, len + 1);
    put_string(writer, "# HELP ");
    put_string(writer, name);
    put_string(writer, " ");
    put_escaped(writer, help, false);
    put_string(writer, "\n# TYPE ");
    put_string(writer, name);
    put_string(writer, " ");
    put_string(writer, kinds[kind]);
    put_string(writer, "\n");
}

void metric_u64(struct metric_writer *writer, struct metric_labels labels, uint64_t value)
{
    assert(writer->name[0] != '\0');

    put_series(writer, "", labels, NULL);
    put_u64(writer, value);
}

void metric_double(struct metric_writer *writer, struct metric_labels labels, double value)
{
    assert(writer->name[0] != '\0');

    put_series(writer, "", labels, NULL);
    put_double(writer, value);
}

void metric_build_info(struct metric_writer *writer, const char *name)
{
    static const struct metric_label labels[] = {{"version", SAMOVAR_VERSION},
                                                 {"compiler", __VERSION__}};

    metric_family(writer, METRIC_GAUGE, name, "1, with what was built as labels.");
    metric_u64(writer, (struct metric_labels){labels, sizeof labels / sizeof *labels}, 1);
}

void metric_histogram(struct metric_writer *writer, struct metric_labels labels,
                      const struct histogram *histogram)
{
    const struct histogram_bounds *bounds = histogram->bounds;
    uint64_t count = 0;
    char bound[32];

    assert(writer->name[0] != '\0');

    for (uint32_t i = 0; i <= bounds->count; i++) {
        count += histogram->counts[i];
        format_double(i < bounds->count ? bounds->bounds[i] : INFINITY, bound);
        put_series(writer, "_bucket", labels, bound);
        put_u64(writer, count);
    }
    put_series(writer, "_sum", labels, NULL);
    put_double(writer, histogram->sum);
    put_series(writer, "_count", labels, NULL);
    put_u64(writer, count);
}
