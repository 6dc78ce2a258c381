// Command hello is the one program of the image that Balsa carries: an HTTP
// server that says which pod answered, and, under other names, the handful of
// tools that exec, attach and cp need in a container.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
	"mvdan.cc/sh/moreinterp/coreutils"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// applets are the names the program answers to; the shell also has coreutils.
var applets map[string]func(args []string) error

func init() {
	applets = map[string]func([]string) error{
		"hello": serve, "sh": shell, "get": get, "curl": get, "wget": get, "tar": tarApplet,
		"hostname": func([]string) error { return printHostname() },
		"env":      func([]string) error { return printEnv() },
		"sleep":    sleepFor, "nslookup": lookup,
	}
	for _, name := range []string{"cat", "ls", "cp", "mv", "rm", "mkdir", "touch", "find", "chmod"} {
		applets[name] = func(args []string) error { return run(name + " " + quoteAll(args)) }
	}
}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name == "hello" && len(args) > 0 && applets[args[0]] != nil {
		name, args = args[0], args[1:]
	}
	applet, ok := applets[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: unknown applet; known are %s\n", name, strings.Join(names(), " "))
		os.Exit(127)
	}
	if err := applet(args); err != nil {
		var status interp.ExitStatus
		if errors.As(err, &status) {
			os.Exit(int(status))
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func names() []string {
	var out []string
	for n := range applets {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// serve answers every path with the pod's name and addresses until SIGTERM,
// then drains open requests for at most five seconds. MESSAGE, PORT and
// DRAIN_DELAY (how long to go on accepting after SIGTERM, so that routing can
// follow) are read from the environment.
func serve([]string) error {
	port := env("PORT", "8080")
	host, _ := os.Hostname()
	message := env("MESSAGE", "Hello from Balsa")
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339), r.RemoteAddr, r.Method, r.URL.Path)
		fmt.Fprintf(w, "%s\npod: %s\nversion: %s\nfrom: %s\n", message, host, env("VERSION", "1"), r.RemoteAddr)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("listen on port %s: %w", port, err)
	}
	fmt.Printf("listening on :%s as %s\n", port, host)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	drained := make(chan error, 1)
	go func() {
		<-ctx.Done()
		delay, err := time.ParseDuration(env("DRAIN_DELAY", "1s"))
		if err == nil {
			time.Sleep(delay)
		}
		bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		drained <- srv.Shutdown(bounded)
	}()
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}

func env(key, fallback string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return fallback
}

// get prints the body of a URL; flags that curl and wget know are passed over.
func get(args []string) error {
	url := ""
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			url = a
		}
	}
	if url == "" {
		return errors.New("usage: get URL")
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return nil
}

func printHostname() error {
	host, err := os.Hostname()
	if err == nil {
		fmt.Println(host)
	}
	return err
}

func printEnv() error {
	for _, kv := range os.Environ() {
		fmt.Println(kv)
	}
	return nil
}

func sleepFor(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sleep SECONDS")
	}
	if args[0] == "infinity" {
		args[0] = "1000000h" // a select without cases would be a deadlock
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		if d, err = time.ParseDuration(args[0] + "s"); err != nil {
			return err
		}
	}
	time.Sleep(d)
	return nil
}

func lookup(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: nslookup NAME")
	}
	addrs, err := net.LookupHost(args[0])
	for _, a := range addrs {
		fmt.Println(a)
	}
	return err
}

// shell is `sh`, `sh -c COMMAND` or `sh FILE`; on a terminal it prompts.
func shell(args []string) error {
	switch {
	case len(args) >= 2 && args[0] == "-c":
		return run(args[1])
	case len(args) == 1 && !strings.HasPrefix(args[0], "-"):
		script, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		return run(string(script))
	case len(args) == 0 || args[0] == "-i":
		return interactive()
	}
	return errors.New("usage: sh [-c COMMAND | FILE]")
}

func newRunner() (*interp.Runner, error) {
	return interp.New(
		interp.StdIO(os.Stdin, os.Stdout, os.Stderr),
		interp.Env(expand.ListEnviron(os.Environ()...)),
		interp.ExecHandlers(coreutils.ExecHandler),
	)
}

func run(script string) error {
	runner, err := newRunner()
	if err != nil {
		return err
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "sh")
	if err != nil {
		return err
	}
	return runner.Run(context.Background(), file)
}

func interactive() error {
	runner, err := newRunner()
	if err != nil {
		return err
	}
	prompt := func() {
		if term.IsTerminal(int(os.Stdin.Fd())) {
			fmt.Print("/ # ")
		}
	}
	prompt()
	var last error
	err = syntax.NewParser().Interactive(os.Stdin, func(stmts []*syntax.Stmt) bool {
		for _, stmt := range stmts {
			last = runner.Run(context.Background(), stmt)
			if runner.Exited() {
				return false
			}
		}
		prompt()
		return true
	})
	if err != nil {
		return err
	}
	return last
}

func quoteAll(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
