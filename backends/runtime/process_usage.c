/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/process_usage.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/time.h>

/* NAN where /proc does not say. */
struct usage {
    double resident_bytes;
    double fds;
    double fds_max;
    double cpu_seconds;
    double start_seconds; /* since 1970 */
};

static double read_resident_bytes(void)
{
    long pages;
    FILE *file = fopen("/proc/self/statm", "re");
    int count;

    if (file == NULL)
        return NAN;
    count = fscanf(file, "%*s %ld", &pages);
    fclose(file);
    return count == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : NAN;
}

static double count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    double count = -1; /* the directory's own */

    if (directory == NULL)
        return NAN;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* The number behind "btime ", when the machine booted. */
static double read_boot_seconds(void)
{
    char line[4096];
    double boot = NAN;
    FILE *file = fopen("/proc/stat", "re");

    if (file == NULL)
        return NAN;
    while (isnan(boot) && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "btime %lf", &boot) != 1)
            boot = NAN;
    fclose(file);
    return boot;
}

/* Field 22 of /proc/self/stat, counted behind the name, which may hold anything. */
static double read_start_seconds(void)
{
    char line[1024];
    unsigned long long ticks;
    double start = NAN;
    FILE *file = fopen("/proc/self/stat", "re");
    const char *behind_name;

    if (file == NULL)
        return NAN;
    if (fgets(line, sizeof line, file) != NULL && (behind_name = strrchr(line, ')')) != NULL &&
        sscanf(behind_name + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &ticks) == 1)
        start = read_boot_seconds() + (double)ticks / (double)sysconf(_SC_CLK_TCK);
    fclose(file);
    return start;
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static struct usage read_usage(void)
{
    struct rlimit limit;
    struct rusage times;

    return (struct usage){
        .resident_bytes = read_resident_bytes(),
        .fds = count_fds(),
        .fds_max = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (double)limit.rlim_cur : NAN,
        .cpu_seconds = getrusage(RUSAGE_SELF, &times) == 0
                           ? seconds(times.ru_utime) + seconds(times.ru_stime)
                           : NAN,
        .start_seconds = read_start_seconds(),
    };
}

void process_usage_write(struct metric_writer *writer)
{
    const struct usage usage = read_usage();
    const struct {
        enum metric_kind kind;
        const char *name;
        const char *help;
        double value;
    } rows[] = {
        {METRIC_COUNTER, "process_cpu_seconds_total", "User and system CPU time spent.",
         usage.cpu_seconds},
        {METRIC_GAUGE, "process_max_fds", "Limit of open file descriptors.", usage.fds_max},
        {METRIC_GAUGE, "process_open_fds", "Open file descriptors.", usage.fds},
        {METRIC_GAUGE, "process_resident_memory_bytes", "Resident memory.", usage.resident_bytes},
        {METRIC_GAUGE, "process_start_time_seconds", "Start, in seconds since 1970.",
         usage.start_seconds},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        metric_family(writer, rows[i].kind, rows[i].name, rows[i].help);
        if (!isnan(rows[i].value))
            metric_double(writer, METRIC_NO_LABELS, rows[i].value);
    }
}
