package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/e2e/figures"
)

// Ports that a server listens on.
const (
	iperfPort = 5201
	echoPort  = 7000 // a byte for a byte
	webPort   = 8080 // HTTP
)

// server answers every kind of load in a pod, until close.
type server struct {
	iperf *exec.Cmd
	web   *http.Server
	echo  net.Listener
	done  sync.WaitGroup
}

// serve starts a server in the pod.
func (p *pod) serve(ctx context.Context) (*server, error) {
	s := &server{web: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })}}
	web, err := p.listen(net.JoinHostPort(p.addr.String(), strconv.Itoa(webPort)))
	if err != nil {
		return nil, err
	}
	if s.echo, err = p.listen(net.JoinHostPort(p.addr.String(), strconv.Itoa(echoPort))); err != nil {
		web.Close()
		return nil, err
	}
	s.done.Go(func() { _ = s.web.Serve(web) })
	s.done.Go(func() {
		for {
			c, err := s.echo.Accept()
			if err != nil {
				return
			}
			s.done.Go(func() { echo(c) })
		}
	})
	s.iperf = p.command(ctx, "iperf3", "-s", "-p", strconv.Itoa(iperfPort))
	s.iperf.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.iperf.Start(); err != nil {
		return nil, errors.Join(err, s.web.Close(), s.echo.Close())
	}
	return s, nil
}

func (s *server) close() error {
	err := errors.Join(s.web.Close(), s.echo.Close(), s.iperf.Process.Kill())
	_ = s.iperf.Wait()
	s.done.Wait()
	return err
}

// echo sends back each byte until the client closes.
func echo(c net.Conn) {
	defer c.Close()
	raw, err := blocking(c)
	if err != nil {
		return
	}
	defer raw.Close()
	fd, b := int(raw.Fd()), make([]byte, 1)
	for {
		if n, err := unix.Read(fd, b); err != nil || n == 0 {
			return
		}
		if _, err := unix.Write(fd, b); err != nil {
			return
		}
	}
}

// blocking returns the connection as a file on which the calling thread blocks, so that Go's poller is not part of the
// measurement.
func blocking(c net.Conn) (*os.File, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T is no TCP connection", c)
	}
	f, err := tcp.File()
	if err != nil {
		return nil, err
	}
	f.Fd() // sets it to blocking
	return f, nil
}

// stream returns iperf3's TCP throughput in Gbit/s.
func stream(ctx context.Context, from place, to string, streams int, window time.Duration) (float64, error) {
	end, err := iperf(ctx, from, to, window, "-P", strconv.Itoa(streams))
	return end.Received.Bits / 1e9, err
}

// datagrams returns the small UDP packets a second that arrive, in thousands.
func datagrams(ctx context.Context, from place, to string, window time.Duration) (float64, error) {
	end, err := iperf(ctx, from, to, window, "-u", "-b", "0", "-l", "64")
	if err == nil && end.Sum.Seconds == 0 {
		err = errors.New("iperf3's report has no figures of datagrams")
	}
	return (end.Sum.Packets - end.Sum.Lost) / end.Sum.Seconds / 1e3, err
}

// iperfEnd is the summary of iperf3's report.
type iperfEnd struct {
	Sum struct {
		Seconds float64 `json:"seconds"`
		Packets float64 `json:"packets"`
		Lost    float64 `json:"lost_packets"`
	} `json:"sum"`
	Received struct {
		Bits float64 `json:"bits_per_second"`
	} `json:"sum_received"`
}

func iperf(ctx context.Context, from place, to string, window time.Duration, args ...string) (iperfEnd, error) {
	ctx, cancel := context.WithTimeout(ctx, window+20*time.Second)
	defer cancel()
	seconds := strconv.Itoa(max(1, int(window.Seconds()+0.5)))
	args = append([]string{"-J", "-c", to, "-p", strconv.Itoa(iperfPort), "-t", seconds}, args...)
	var end iperfEnd
	err := until(ctx, 15*time.Second, func() error { // the server may still be busy with the previous client
		out, ran := from.command(ctx, "iperf3", args...).Output()
		var err error
		if end, err = parseIperf(out); err != nil {
			err = fmt.Errorf("iperf3 %v: %w", args, errors.Join(ran, err))
		}
		return err
	})
	return end, err
}

func parseIperf(out []byte) (iperfEnd, error) {
	var report struct {
		End   iperfEnd `json:"end"`
		Error string   `json:"error"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return report.End, fmt.Errorf("iperf3's report: %w", err)
	}
	if report.Error != "" {
		return report.End, fmt.Errorf("iperf3: %s", report.Error)
	}
	return report.End, nil
}

// roundTrips sends a byte and waits for it again and again on one connection; the results are in microseconds.
func roundTrips(ctx context.Context, from place, to string, window time.Duration) (p50, p99 float64, err error) {
	c, err := from.dial(ctx, "tcp", to)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	raw, err := blocking(c)
	if err != nil {
		return 0, 0, err
	}
	defer raw.Close()
	fd, b := int(raw.Fd()), []byte{1}
	var samples []float64
	for began := time.Now(); time.Since(began) < window; {
		at := time.Now()
		if _, err := unix.Write(fd, b); err != nil {
			return 0, 0, err
		}
		if n, err := unix.Read(fd, b); err != nil || n == 0 {
			return 0, 0, fmt.Errorf("no answer: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		samples = append(samples, float64(time.Since(at))/1e3)
	}
	slices.Sort(samples)
	return figures.Quantile(samples, 0.5), figures.Quantile(samples, 0.99), ctx.Err()
}

// crowd is the number of concurrent clients.
const crowd = 8

// atOnce lets a crowd repeat do, and returns how often a second it was done. The first error ends it.
func atOnce(ctx context.Context, from place, window time.Duration, do func(context.Context) error) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var done atomic.Int64
	faults := make([]error, crowd)
	var joined sync.WaitGroup
	began := time.Now()
	for i := range crowd {
		joined.Go(func() {
			faults[i] = from.within(func() error {
				for ctx.Err() == nil {
					if err := do(ctx); err != nil && ctx.Err() == nil {
						cancel()
						return err
					}
					done.Add(1)
				}
				return nil
			})
		})
	}
	joined.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(faults...)
}

// requests returns the HTTP requests a second that are answered.
func requests(ctx context.Context, from place, to string, window time.Duration, newConnections bool) (float64, error) {
	transport := &http.Transport{DialContext: from.dial, DisableKeepAlives: newConnections, MaxIdleConnsPerHost: crowd, MaxConnsPerHost: crowd}
	if newConnections { // the callers' threads are in the namespace already
		transport.DialContext = new(net.Dialer).DialContext
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	return atOnce(ctx, from, window, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to+"/", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	})
}

// connections returns the TCP connections a second that are opened, used for one byte and reset.
func connections(ctx context.Context, from place, to string, window time.Duration) (float64, error) {
	addr, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return 0, err
	}
	target := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	return atOnce(ctx, from, window, func(context.Context) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		b := []byte{1}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3}); err != nil {
			return err
		}
		if err := unix.Connect(fd, target); err != nil {
			return err
		}
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		_, err = unix.Read(fd, b)
		return err
	})
}
