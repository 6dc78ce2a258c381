/* The process of a pod's sandbox: it holds the namespaces open, reaps orphans
 * of a shared PID namespace and leaves on SIGTERM or SIGINT. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int sig) {
	(void)sig;
	_exit(0);
}

static void reap(int sig) {
	(void)sig;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void) {
	struct sigaction sa = {.sa_handler = leave};
	if (sigaction(SIGINT, &sa, 0) || sigaction(SIGTERM, &sa, 0))
		return 1;
	sa.sa_handler = reap;
	sa.sa_flags = SA_NOCLDSTOP;
	if (sigaction(SIGCHLD, &sa, 0))
		return 2;
	for (;;)
		pause();
}
