/* A disk that takes a second and a half to sync. */
#include <time.h>

static int slowly(void)
{
    struct timespec time = {1, 500000000};
    nanosleep(&time, NULL);
    return 0;
}

int fdatasync(int file)
{
    (void)file;
    return slowly();
}

int fsync(int file)
{
    (void)file;
    return slowly();
}
