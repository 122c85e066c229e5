// Load client: closed-loop streams or plain requests against one target, one JSON object on stdout.
//
//   load streams  TARGET BODY CONCURRENCY COUNT     COUNT streams in all; TCP connections are kept, as SDKs do, Unix
//                                                   ones are new each time, since an engine closes them after a stream
//   load requests TARGET BODY CONCURRENCY SECONDS   plain requests on kept connections for so long
//
// TARGET is unix:/path or 127.0.0.1:port; BODY is a file. An event that holds "t":NANOSECONDS (monotonic clock of this
// machine) gives its one-way latency. A stream counts as whole when it was 200, said [DONE] and ended its chunks.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 65536

typedef struct {
    int fd, started, status_ok, done, ended, first, skip;
    long length, got;
    long long sent_at;
    size_t used;
    char line[LINE_MAX_BYTES];
} Conn;

static struct sockaddr_storage address;
static socklen_t address_size;
static char *request;
static size_t request_size;
static int epoll_fd;
static double *latencies, *firsts;
static long n_latencies, cap_latencies, n_firsts, cap_firsts, n_events, n_ok, n_failed;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void keep(double **array, long *n, long *cap, double value) {
    if (*n == *cap) *array = realloc(*array, (*cap = *cap ? *cap * 2 : 4096) * sizeof(double));
    (*array)[(*n)++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(double *sorted, long n, double q) {
    return n ? sorted[(long)(q * (n - 1))] : 0;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void set_target(const char *target) {
    if (!strncmp(target, "unix:", 5)) {
        struct sockaddr_un *local = (void *)&address;
        local->sun_family = AF_UNIX;
        strncpy(local->sun_path, target + 5, sizeof local->sun_path - 1);
        address_size = sizeof *local;
    } else {
        struct sockaddr_in *tcp = (void *)&address;
        const char *colon = strchr(target, ':');
        char host[64] = {0};
        memcpy(host, target, colon - target);
        tcp->sin_family = AF_INET;
        tcp->sin_port = htons(atoi(colon + 1));
        inet_pton(AF_INET, host, &tcp->sin_addr);
        address_size = sizeof *tcp;
    }
}

static void set_request(const char *path) {
    FILE *file = fopen(path, "rb");
    static char body[1 << 20];
    if (!file) fail(path);
    size_t n = fread(body, 1, sizeof body, file);
    fclose(file);
    request = malloc(n + 512);
    request_size = sprintf(request,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n", n);
    memcpy(request + request_size, body, n);
    request_size += n;
}

static void send_request(Conn *c) {
    c->status_ok = c->done = c->ended = c->first = c->skip = 0;
    c->length = -1;
    c->got = 0;
    c->used = 0;
    c->sent_at = now_ns();
    if (write(c->fd, request, request_size) != (ssize_t)request_size) fail("write");
}

static void open_conn(Conn *c) {
    c->fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, address_size)) fail("connect");
    int one = 1;
    if (address.ss_family == AF_INET) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    send_request(c);
}

static void take_line(Conn *c, char *line, long long now) {
    if (!strncmp(line, "HTTP/1.1 ", 9)) c->status_ok = !strncmp(line + 9, "200", 3);
    if (!strncmp(line, "data: ", 6)) {
        n_events++;
        if (!c->first) {
            c->first = 1;
            keep(&firsts, &n_firsts, &cap_firsts, (now - c->sent_at) / 1e3);
        }
        char *stamp = strstr(line, "\"t\":");
        if (stamp) keep(&latencies, &n_latencies, &cap_latencies, (now - atoll(stamp + 4)) / 1e3);
        if (!strncmp(line + 6, "[DONE]", 6)) c->done = 1;
    }
    if (c->done && !strcmp(line, "0")) c->ended = 1;
}

// Feeds bytes to the line reader; 1 when the stream is whole.
static int take(Conn *c, char *data, ssize_t n) {
    long long now = now_ns();
    for (ssize_t i = 0; i < n; i++) {
        if (data[i] == '\n') {
            if (c->used && c->line[c->used - 1] == '\r') c->used--;
            c->line[c->used] = 0;
            take_line(c, c->line, now);
            c->used = 0;
        } else if (c->used < LINE_MAX_BYTES - 1) {
            c->line[c->used++] = data[i];
        }
    }
    return c->ended;
}

static void run_streams(int concurrency, long count) {
    Conn *conns = calloc(concurrency, sizeof(Conn));
    long started = 0, finished = 0;
    long long begin = now_ns();
    for (int i = 0; i < concurrency && started < count; i++, started++) open_conn(&conns[i]);
    struct epoll_event events[64];
    char data[65536];
    while (finished < count) {
        int n = epoll_wait(epoll_fd, events, 64, 60000);
        if (n == 0) {
            n_failed += count - finished;
            break;
        }
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            ssize_t got = read(c->fd, data, sizeof data);
            if (got < 0 && errno == EAGAIN) continue;
            int whole = got > 0 && take(c, data, got);
            if (got > 0 && !whole) continue;
            if (whole && c->status_ok) n_ok++; else n_failed++;
            finished++;
            int again = started < count;
            started += again;
            if (again && whole && address.ss_family == AF_INET) {
                send_request(c);
                continue;
            }
            close(c->fd);
            if (again) open_conn(c);
        }
    }
    double seconds = (now_ns() - begin) / 1e9;
    qsort(latencies, n_latencies, sizeof(double), by_value);
    qsort(firsts, n_firsts, sizeof(double), by_value);
    printf("{\"ok\":%ld,\"failed\":%ld,\"events\":%ld,\"seconds\":%.6f,\"ttft_p50_us\":%.1f,\"ttft_p95_us\":%.1f,"
           "\"event_p50_us\":%.1f,\"event_p95_us\":%.1f,\"event_p99_us\":%.1f}\n",
           n_ok, n_failed, n_events, seconds, quantile(firsts, n_firsts, .5), quantile(firsts, n_firsts, .95),
           quantile(latencies, n_latencies, .5), quantile(latencies, n_latencies, .95),
           quantile(latencies, n_latencies, .99));
}

// A plain answer is whole when Content-Length bytes follow the head.
static int plain_whole(Conn *c, char *data, ssize_t n) {
    if (c->length < 0) {
        char *end = memmem(data, n, "\r\n\r\n", 4), *field = memmem(data, n, "ontent-", 7);
        while (field && strncasecmp(field, "ontent-length:", 14)) field = memmem(field + 1, data + n - field - 1, "ontent-", 7);
        if (!end || !field) return 0;  // heads of these answers come in one piece
        c->status_ok = !strncmp(data, "HTTP/1.1 200", 12);
        c->length = atol(field + 14);
        c->got = n - (end + 4 - data);
    } else {
        c->got += n;
    }
    return c->got >= c->length;
}

static void run_requests(int concurrency, double seconds) {
    Conn *conns = calloc(concurrency, sizeof(Conn));
    long long begin = now_ns(), end = begin + (long long)(seconds * 1e9);
    for (int i = 0; i < concurrency; i++) open_conn(&conns[i]);
    struct epoll_event events[64];
    char data[65536];
    while (now_ns() < end) {
        int n = epoll_wait(epoll_fd, events, 64, 1000);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            ssize_t got = read(c->fd, data, sizeof data);
            if (got <= 0) {
                n_failed++;
                close(c->fd);
                open_conn(c);
                continue;
            }
            if (!plain_whole(c, data, got)) continue;
            if (c->status_ok) n_ok++; else n_failed++;
            send_request(c);
        }
    }
    double spent = (now_ns() - begin) / 1e9;
    printf("{\"ok\":%ld,\"failed\":%ld,\"seconds\":%.6f,\"req_s\":%.1f}\n", n_ok, n_failed, spent, n_ok / spent);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: load streams|requests TARGET BODY CONCURRENCY COUNT|SECONDS\n");
        return 2;
    }
    set_target(argv[2]);
    set_request(argv[3]);
    epoll_fd = epoll_create1(0);
    if (!strcmp(argv[1], "streams")) run_streams(atoi(argv[4]), atol(argv[5]));
    else run_requests(atoi(argv[4]), atof(argv[5]));
    return 0;
}
