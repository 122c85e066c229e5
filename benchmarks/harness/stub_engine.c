// A stand-in for llama-server that costs almost nothing: the same wire format, no model. For measuring what lies between
// it and a client. Understands the flags it needs (--host SOCKET, -c, -np) and ignores the rest.
//
// A streaming request may say, as fields of its JSON body, "events":N, "interval_us":N and "delay_us":N (before the first
// event), "jitter_us":N (a random part added to it, so that streams do not tick together). Every event carries "t", the monotonic time it was written. Like the engine, it closes after a stream.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 4096
#define REQUEST_MAX 65536

typedef struct {
    int open, streaming;
    long left, sent, interval_us;
    long long due;
    size_t used, pending_n;
    char *pending;  // what a reader that does not keep up still has to get
    char request[REQUEST_MAX];
} Conn;

static Conn conns[MAX_FD];
static int epoll_fd, top, n_slots = 1, n_ctx = 4096;
static const char *model = "";

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void drop(int fd) {
    Conn *c = &conns[fd];
    c->open = c->streaming = 0;
    free(c->pending);
    c->pending = NULL;
    c->pending_n = 0;
    close(fd);
}

static void put(int fd, const char *data, size_t n) {
    Conn *c = &conns[fd];
    while (n && c->open && !c->pending_n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EAGAIN) break;
        if (done <= 0) {
            drop(fd);
            return;
        }
        data += done;
        n -= done;
    }
    if (!n || !c->open) return;
    c->pending = realloc(c->pending, c->pending_n + n);
    memcpy(c->pending + c->pending_n, data, n);
    c->pending_n += n;
}

// 1 when nothing is left to be written.
static int flush(int fd) {
    Conn *c = &conns[fd];
    size_t n = c->pending_n;
    if (!n) return 1;
    c->pending_n = 0;
    char *data = c->pending;
    c->pending = NULL;
    put(fd, data, n);
    free(data);
    return c->open && !c->pending_n;
}

static void put_chunk(int fd, const char *event) {
    char out[1024];
    put(fd, out, sprintf(out, "%zx\r\n%s\r\n", strlen(event), event));
}

static void put_json(int fd, const char *body) {
    static char out[70000];
    put(fd, out, sprintf(out, "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n"
        "Content-Type: application/json; charset=utf-8\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body));
}

static void put_slots(int fd) {
    static char list[65536];
    int busy = 0, used = 1;
    for (int i = 0; i <= top; i++) busy += conns[i].open && conns[i].streaming;
    list[0] = '[';
    for (int i = 0; i < n_slots && used < 60000; i++)
        used += sprintf(list + used, "%s{\"id\":%d,\"is_processing\":%s}", i ? "," : "", i, i < busy ? "true" : "false");
    strcpy(list + used, "]");
    put_json(fd, list);
}

static long field(const char *body, const char *name, long otherwise) {
    const char *found = strstr(body, name);
    return found ? atol(found + strlen(name)) : otherwise;
}

static void start_stream(int fd, const char *body) {
    Conn *c = &conns[fd];
    c->streaming = 1;
    c->sent = 0;
    c->left = field(body, "\"events\":", 16);
    c->interval_us = field(body, "\"interval_us\":", 0);
    long jitter_us = field(body, "\"jitter_us\":", 0);
    c->due = now_ns() + (field(body, "\"delay_us\":", 0) + (jitter_us ? rand() % jitter_us : 0)) * 1000;
}

static void next_event(int fd) {
    Conn *c = &conns[fd];
    char event[512];
    if (!flush(fd)) {
        c->due = now_ns() + 5000000;
        return;
    }
    if (c->left < 0) {
        drop(fd);
        return;
    }
    if (!c->sent) {
        const char *head = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n"
            "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nAccess-Control-Allow-Origin: \r\n\r\n";
        put(fd, head, strlen(head));
    }
    if (c->left) {
        sprintf(event, "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\" token\"}}],"
            "\"created\":1795974684,\"id\":\"chatcmpl-CJuGsR4TvKqOfptvgLryhhtpbPNKfRZK\",\"model\":\"demo\","
            "\"system_fingerprint\":\"b11434\",\"object\":\"chat.completion.chunk\",\"t\":%lld}\n\n", now_ns());
        c->left--;
        c->sent++;
        c->due += c->interval_us * 1000;
        put_chunk(fd, event);
        return;
    }
    put_chunk(fd, "data: {\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}],\"timings\":{\"predicted_n\":1}}\n\n");
    put_chunk(fd, "data: [DONE]\n\n");
    put(fd, "0\r\n\r\n", 5);
    c->left = -1;
    if (conns[fd].open && !c->pending_n) drop(fd);
}

static void answer(int fd, char *body) {
    char *request = conns[fd].request, out[512];
    if (!strncmp(request, "GET /props", 10)) {
        snprintf(out, sizeof out, "{\"total_slots\":%d,\"default_generation_settings\":{\"n_ctx\":%d},\"model_path\":\"%s\"}",
            n_slots, n_ctx / n_slots, model);
        put_json(fd, out);
    } else if (!strncmp(request, "GET /slots", 10)) {
        put_slots(fd);
    } else if (!strncmp(request, "GET ", 4)) {
        put_json(fd, "{\"status\":\"ok\"}");
    } else if (strstr(body, "\"stream\":true")) {
        start_stream(fd, body);
    } else {
        put_json(fd, "{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
            "\"hello\"}}],\"created\":1795974684,\"model\":\"demo\",\"object\":\"chat.completion\",\"usage\":{\"completion_tokens\":1,"
            "\"prompt_tokens\":1,\"total_tokens\":2},\"tokens_predicted\":1,\"timings\":{\"prompt_n\":1,\"prompt_ms\":1.5,\"predicted_n\":1}}");
    }
}

static void readable(int fd) {
    Conn *c = &conns[fd];
    ssize_t n = read(fd, c->request + c->used, REQUEST_MAX - 1 - c->used);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        drop(fd);
        return;
    }
    c->used += n;
    c->request[c->used] = 0;
    char *end = strstr(c->request, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(c->request, "content-length:");
    size_t whole = end + 4 - c->request + (length && length < end ? atol(length + 15) : 0);
    if (c->used < whole) return;
    c->used = 0;
    answer(fd, end + 4);
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--host") && i + 1 < argc) strncpy(address.sun_path, argv[i + 1], sizeof address.sun_path - 1);
        if (!strcmp(argv[i], "--model") && i + 1 < argc) model = argv[i + 1];
        if (!strcmp(argv[i], "-np") && i + 1 < argc) n_slots = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "-c") && i + 1 < argc) n_ctx = atoi(argv[i + 1]);
    }
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) {
        perror("bind");
        return 1;
    }
    epoll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        long long now = now_ns(), next = now + 1000000000LL;
        for (int fd = 0; fd <= top; fd++) {
            while (conns[fd].streaming && conns[fd].due <= now) next_event(fd);
            if (conns[fd].streaming && conns[fd].due < next) next = conns[fd].due;
        }
        struct timespec wait = {.tv_nsec = next > (now = now_ns()) ? (next - now) % 1000000000LL : 0};
        int n = epoll_pwait2(epoll_fd, events, 256, &wait, NULL);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                readable(fd);
                continue;
            }
            int fresh;
            while ((fresh = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (fresh >= MAX_FD) {
                    close(fresh);
                    continue;
                }
                conns[fresh].open = 1;
                conns[fresh].streaming = 0;
                conns[fresh].used = 0;
                if (fresh > top) top = fresh;
                event.data.fd = fresh;
                epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fresh, &event);
            }
        }
    }
}
