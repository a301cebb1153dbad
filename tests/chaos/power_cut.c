/* What a power cut must keep: after each finished f(data)sync a line "end size path" goes to $SYNC_LOG:
   the nanosecond (CLOCK_MONOTONIC) at which it was over, and how long the file was when it began. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void note(int file, off_t size) {
    struct timespec end;
    char link[64], path[4096];
    const char *log = getenv("SYNC_LOG");
    clock_gettime(CLOCK_MONOTONIC, &end);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!log || length < 0) return;
    path[length] = 0;
    int out = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) abort();
    dprintf(out, "%lld %lld %s\n", end.tv_sec * 1000000000LL + end.tv_nsec, (long long)size, path);
    close(out);
}

static int synced(int file, const char *name) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat facts;
    fstat(file, &facts);
    int result = real(file);
    if (!result) note(file, facts.st_size);
    return result;
}

int fsync(int file) { return synced(file, "fsync"); }
int fdatasync(int file) { return synced(file, "fdatasync"); }
