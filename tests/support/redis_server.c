/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/redis_server.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LISTEN_MS_MAX = 20000,
    POLL_MS = 2,
    OPTION_COUNT_MAX = 32,
    FOLDER_BYTES = 64,
    LINE_BYTES_MAX = 4096,
};

static const char node_in_file[] = "sim-1";

struct redis_server {
    char folder[FOLDER_BYTES];
    char path[FOLDER_BYTES + 16];
    char users[FOLDER_BYTES + 16]; /* the file; "": none */
    const char *const *options;
    pid_t pid; /* 0: killed */
};

static void die(const char *what)
{
    fprintf(stderr, "redis_server: ");
    perror(what);
    abort();
}

/* -1: nobody listens. */
static int connect_to(const struct redis_server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die("socket");
    memcpy(address.sun_path, server->path, sizeof server->path);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static void exec_server(const struct redis_server *server)
{
    const char *words[OPTION_COUNT_MAX] = {
        "redis-server", "--port",    "0",         "--unixsocket", server->path, "--dir",
        server->folder, "--save",    "",          "--appendonly", "no",         "--daemonize",
        "no",           "--logfile", "redis.log",
    };
    const char *chosen = getenv("SAMOVAR_REDIS_SERVER");
    size_t count = 0;

    if (chosen != NULL && chosen[0] != '\0')
        words[0] = chosen;
    while (words[count] != NULL)
        count++;
    if (server->users[0] != '\0') {
        words[count++] = "--aclfile";
        words[count++] = server->users;
    }
    for (size_t i = 0; server->options != NULL && server->options[i] != NULL; i++) {
        if (count + 1 == OPTION_COUNT_MAX)
            _exit(126);
        words[count++] = server->options[i];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* with the test, however that ends */
    execvp(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
}

static void start(struct redis_server *server)
{
    const struct timespec pause = {0, POLL_MS * 1000000L};
    int fd = -1, status;

    (void)unlink(server->path);
    server->pid = fork();
    if (server->pid < 0)
        die("fork");
    if (server->pid == 0)
        exec_server(server);
    for (int ms = 0; ms < LISTEN_MS_MAX && (fd = connect_to(server)) < 0; ms += POLL_MS) {
        if (waitpid(server->pid, &status, WNOHANG) == server->pid)
            die("redis-server (or $SAMOVAR_REDIS_SERVER) ended: is it installed?");
        nanosleep(&pause, NULL);
    }
    if (fd < 0)
        die("redis-server does not listen");
    close(fd);
}

static struct redis_server *create(const char *const *options)
{
    struct redis_server *server = calloc(1, sizeof *server);

    if (server == NULL)
        die("calloc");
    server->options = options;
    snprintf(server->folder, sizeof server->folder, "/tmp/samovar-redis-XXXXXX");
    if (mkdtemp(server->folder) == NULL)
        die("mkdtemp");
    snprintf(server->path, sizeof server->path, "%s/redis.sock", server->folder);
    return server;
}

struct redis_server *redis_server_create(const char *const *options)
{
    struct redis_server *server = create(options);

    start(server);
    return server;
}

/* With node for each node_in_file. */
static void copy_line(FILE *to, const char *line, const char *node)
{
    const char *found;

    while ((found = strstr(line, node_in_file)) != NULL) {
        fprintf(to, "%.*s%s", (int)(found - line), line, node);
        line = found + strlen(node_in_file);
    }
    fputs(line, to);
}

struct redis_server *redis_server_create_with_users(const char *const *options, const char *name,
                                                    const char *node)
{
    struct redis_server *server = create(options);
    char path[512], line[LINE_BYTES_MAX];
    FILE *from, *to;

    snprintf(path, sizeof path, "%s/../docker/%s", TESTS_DIR, name);
    snprintf(server->users, sizeof server->users, "%s/users.acl", server->folder);
    from = fopen(path, "r");
    to = fopen(server->users, "w");
    if (from == NULL || to == NULL)
        die(path);
    fputs("user default on nopass ~* &* +@all\n", to);
    while (fgets(line, sizeof line, from) != NULL) {
        if (strncmp(line, "user default ", 13) != 0)
            copy_line(to, line, node);
    }
    fclose(from);
    fclose(to);
    start(server);
    return server;
}

struct redis_url redis_server_url(const struct redis_server *server)
{
    struct redis_url url = {.port = 0};

    memcpy(url.path, server->path, strlen(server->path) + 1);
    return url;
}

const char *redis_server_folder(const struct redis_server *server)
{
    return server->folder;
}

void redis_server_ask(const struct redis_server *server, const char *command, char *reply,
                      size_t reply_size)
{
    const int fd = connect_to(server);
    size_t len = 0;
    ssize_t count;

    if (fd < 0)
        die("redis-server does not listen");
    /* QUIT makes it close behind the answer: no need to understand where that ends. */
    if (dprintf(fd, "%s\r\nQUIT\r\n", command) < 0)
        die("write");
    while (len + 1 < reply_size && (count = read(fd, reply + len, reply_size - 1 - len)) > 0)
        len += (size_t)count;
    reply[len] = '\0';
    if (len >= 5 && strcmp(reply + len - 5, "+OK\r\n") == 0)
        reply[len - 5] = '\0'; /* QUIT's */
    close(fd);
}

void redis_server_stop(struct redis_server *server)
{
    kill(server->pid, SIGSTOP);
}

void redis_server_continue(struct redis_server *server)
{
    kill(server->pid, SIGCONT);
}

void redis_server_kill(struct redis_server *server)
{
    if (server->pid == 0)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void redis_server_restart(struct redis_server *server)
{
    redis_server_kill(server);
    start(server);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

void redis_server_destroy(struct redis_server *server)
{
    if (server == NULL)
        return;
    redis_server_kill(server);
    (void)nftw(server->folder, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
    free(server);
}
