/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/metric.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "tests/support/leak_check.h"

TestSuite(metric, .fini = leak_check);

static struct metric_labels one(const struct metric_label *label)
{
    return (struct metric_labels){label, 1};
}

Test(metric, a_family_is_introduced_once_and_its_samples_follow)
{
    struct metric_writer writer;
    struct buf out;
    buf_init(&out, 4096);
    metric_writer_init(&writer, &out);

    metric_family(&writer, METRIC_COUNTER, "x_requests_total", "Requests.");
    metric_u64(&writer, one(&(struct metric_label){"api", "chat"}), 3);
    metric_u64(&writer, METRIC_NO_LABELS, UINT64_MAX);

    cr_assert(eq(int, writer.status, 0));
    cr_assert(slice_eq(buf_slice(&out), SLICE("# HELP x_requests_total Requests.\n"
                                              "# TYPE x_requests_total counter\n"
                                              "x_requests_total{api=\"chat\"} 3\n"
                                              "x_requests_total 18446744073709551615\n")));
    buf_release(&out);
}

Test(metric, label_values_and_help_are_escaped)
{
    struct metric_writer writer;
    struct buf out;
    buf_init(&out, 4096);
    metric_writer_init(&writer, &out);

    metric_family(&writer, METRIC_GAUGE, "x", "A \\ \"b\"\nc.");
    metric_u64(&writer, one(&(struct metric_label){"w", "a\"b\\c\nd"}), 1);

    cr_assert(slice_eq(buf_slice(&out), SLICE("# HELP x A \\\\ \"b\"\\nc.\n"
                                              "# TYPE x gauge\n"
                                              "x{w=\"a\\\"b\\\\c\\nd\"} 1\n")));
    buf_release(&out);
}

Test(metric, a_histogram_is_cumulative_up_to_inf)
{
    static const struct histogram_bounds bounds = {2, {0.00001, 2.5}};
    struct histogram histogram;
    struct metric_writer writer;
    struct buf out;
    buf_init(&out, 4096);
    metric_writer_init(&writer, &out);
    histogram_init(&histogram, &bounds);
    histogram_observe(&histogram, 0);
    histogram_observe(&histogram, 1.5);
    histogram_observe(&histogram, 100);

    metric_family(&writer, METRIC_HISTOGRAM, "x_seconds", "Time.");
    metric_histogram(&writer, METRIC_NO_LABELS, &histogram);
    metric_histogram(&writer, one(&(struct metric_label){"a", "b"}), &histogram);

    cr_assert(slice_eq(buf_slice(&out), SLICE("# HELP x_seconds Time.\n"
                                              "# TYPE x_seconds histogram\n"
                                              "x_seconds_bucket{le=\"1e-05\"} 1\n"
                                              "x_seconds_bucket{le=\"2.5\"} 2\n"
                                              "x_seconds_bucket{le=\"+Inf\"} 3\n"
                                              "x_seconds_sum 101.5\n"
                                              "x_seconds_count 3\n"
                                              "x_seconds_bucket{a=\"b\",le=\"1e-05\"} 1\n"
                                              "x_seconds_bucket{a=\"b\",le=\"2.5\"} 2\n"
                                              "x_seconds_bucket{a=\"b\",le=\"+Inf\"} 3\n"
                                              "x_seconds_sum{a=\"b\"} 101.5\n"
                                              "x_seconds_count{a=\"b\"} 3\n")));
    buf_release(&out);
}

Test(metric, a_double_reads_back_as_the_same_double)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "x 0\n"},
                {3, "x 3\n"},
                {-2, "x -2\n"},
                {0.1, "x 0.1\n"},
                {1.0 / 3, "x 0.3333333333333333\n"},
                {1e300, "x 1e+300\n"},
                {NAN, "x NaN\n"},
                {INFINITY, "x +Inf\n"},
                {-INFINITY, "x -Inf\n"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct metric_writer writer;
        struct buf out;
        buf_init(&out, 4096);
        metric_writer_init(&writer, &out);
        metric_family(&writer, METRIC_GAUGE, "x", "X.");
        buf_clear(&out);

        metric_double(&writer, METRIC_NO_LABELS, rows[i].value);

        cr_assert(slice_eq(buf_slice(&out), slice_of_string(rows[i].text)), "%s", rows[i].text);
        buf_release(&out);
    }
}

Test(metric, the_first_failure_is_kept_and_nothing_follows_it)
{
    struct metric_writer writer;
    struct buf out;
    buf_init(&out, 40);
    metric_writer_init(&writer, &out);

    metric_family(&writer, METRIC_GAUGE, "x_of_a_long_name", "Too long for this buffer.");
    size_t len = buf_len(&out);
    metric_u64(&writer, METRIC_NO_LABELS, 1);

    cr_assert(eq(int, writer.status, -ENOBUFS));
    cr_assert(eq(sz, buf_len(&out), len));
    buf_release(&out);
}
