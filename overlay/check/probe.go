package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/host"
)

const (
	// idPrefix begins the container IDs of probes for CNI plugins.
	idPrefix = "balsa-net-check-"
	linkName = "eth0"
	// detachTime is how long plugins may take to detach a probe.
	detachTime = 20 * time.Second
	// mostHeard bounds how many nodes a probe remembers to have heard.
	mostHeard = 8192
)

// probe is a network namespace on the pod network in which an echo answers.
type probe struct {
	run, node string
	opened    Opened
	pod       host.Namespace
	timer     *time.Timer // set by the caller of attach
	detach    func() error
	tcp       net.Listener
	udp       *net.UDPConn
	running   sync.WaitGroup

	mu   sync.Mutex
	from map[string]struct{} // nodes whose datagrams arrived
}

// attach makes a namespace, attaches it to the network and starts its echo.
func (a *Agent) attach(ctx context.Context, run string) (*probe, error) {
	handle, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("network check: %w", err)
	}
	id, path := idPrefix+run, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(handle))
	p := &probe{run: run, node: a.cfg.Node, from: make(map[string]struct{})}
	p.detach = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), detachTime)
		defer cancel()
		return errors.Join(a.detach(ctx, id, path), handle.Close())
	}
	err = a.mark(id)
	if err == nil {
		var at *overlay.Attachment
		if at, err = overlay.Attach(ctx, a.cfg.CNIConfDir, a.cfg.CNIBinDirs, id, path); err == nil {
			p.opened.Addresses = at.Addresses
			err = p.listen(path)
		}
	}
	if err != nil {
		if err := p.end(); err != nil {
			a.cfg.Logger.Debug("cannot remove a network check's probe that was attached in part; it stays until the next check", "err", err)
		}
		return nil, fmt.Errorf("pods cannot be attached to the network: %w", err)
	}
	return p, nil
}

// mark records a probe, so that it can be removed if this process is killed.
func (a *Agent) mark(id string) error {
	if err := os.MkdirAll(a.cfg.StateDir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(a.marker(id), nil, 0o600)
}

// detach takes a probe off the network. When its namespace is gone, it still frees the addresses that plugins recorded.
func (a *Agent) detach(ctx context.Context, id, path string) error {
	at, err := overlay.Attached(a.cfg.CNIConfDir, a.cfg.CNIBinDirs, id, path)
	if err == nil {
		err = at.Detach(ctx)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(a.marker(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// newNamespace makes a network namespace that lives as long as its handle, so that it ends with the process.
func newNamespace() (netns.NsHandle, error) {
	type result struct {
		handle netns.NsHandle
		err    error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the namespace and ends with the goroutine
		var h netns.NsHandle
		err := fault.Contain("overlay/check", func() (err error) { h, err = netns.New(); return err })
		made <- result{h, err}
	}()
	r := <-made
	return r.handle, r.err
}

// listen starts the echo in the namespace.
func (p *probe) listen(path string) (err error) {
	if p.pod, err = host.OpenNamespace(path); err != nil {
		return err
	}
	err = p.pod.Do(func() error {
		link, err := net.InterfaceByName(linkName)
		if err != nil {
			return fmt.Errorf("the network gave the pod no %s: %w", linkName, err)
		}
		p.opened.MTU = link.MTU
		at := fmt.Sprintf(":%d", EchoPort)
		if p.tcp, err = net.Listen("tcp", at); err != nil {
			return err
		}
		conn, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		p.udp = conn.(*net.UDPConn)
		return nil
	})
	if err != nil {
		return err
	}
	p.running.Go(fault.Contained("overlay/check", p.echoStreams))
	p.running.Go(fault.Contained("overlay/check", p.echoDatagrams))
	return nil
}

// end stops answering and takes the probe off the network.
func (p *probe) end() error {
	if p.tcp != nil {
		p.tcp.Close()
	}
	if p.udp != nil {
		p.udp.Close()
	}
	p.running.Wait()
	return errors.Join(p.pod.Close(), p.detach())
}

func (p *probe) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for node := range p.from {
		out = append(out, node)
	}
	slices.Sort(out)
	return out
}

// recordGreeting records the node that sent a greeting. It returns false if the greeting has not the name of this run.
func (p *probe) recordGreeting(greeting string) (ok bool) {
	word, rest, _ := strings.Cut(greeting, " ")
	node, _, _ := strings.Cut(rest, " ")
	if word != p.run || node == "" || len(node) > 253 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.from) < mostHeard {
		p.from[node] = struct{}{}
	}
	return true
}

// echoStreams answers "RUN NODE" with "NODE ADDRESS": the answering node, and the client's address.
func (p *probe) echoStreams() {
	slots := make(chan struct{}, 2*triesAtOnce)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := p.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		select {
		case slots <- struct{}{}:
			open.Go(fault.Contained("overlay/check", func() {
				defer func() { <-slots }()
				p.echoStream(c)
			}))
		default:
			c.Close()
		}
	}
}

func (p *probe) echoStream(c net.Conn) {
	defer c.Close()
	if c.SetDeadline(time.Now().Add(tryTime)) != nil {
		return
	}
	line := make([]byte, 512)
	n, err := c.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), p.run+" ") {
		return
	}
	fmt.Fprintf(c, "%s %s\n", p.node, addressOf(c.RemoteAddr()))
}

// echoDatagrams answers "RUN NODE NUMBER …", of any length, with "RUN NODE ADDRESS NUMBER".
func (p *probe) echoDatagrams() {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := p.udp.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !p.recordGreeting(string(buffer[:min(n, 512)])) {
			continue
		}
		words := strings.SplitN(string(buffer[:min(n, 512)]), " ", 4)
		if len(words) < 4 {
			continue
		}
		answer := fmt.Sprintf("%s %s %s %s", p.run, p.node, from.Addr().Unmap(), words[2])
		_, _ = p.udp.WriteToUDPAddrPort([]byte(answer), from)
	}
}

func addressOf(a net.Addr) netip.Addr {
	if at, err := netip.ParseAddrPort(a.String()); err == nil {
		return at.Addr().Unmap()
	}
	return netip.Addr{}
}
