package e2e

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBadPeers: a peer that may not join gets one line with the reason and changes nothing. A client that sends
// garbage, or nothing, costs little.
func TestBadPeers(t *testing.T) {
	s := newSeveral(t, 1, 1, 2)
	s.form()
	server := s.servers[0]
	server.kubectl("create", "configmap", "precious", "--from-literal=a=b")
	stranger := newHostOn(t, s.spare[0], "--disable-agent")
	s.must(stranger.Start("server"))
	s.ready(stranger)
	token, err := server.Token(t.Context(), "server")
	s.must(err)
	foreign, err := stranger.Token(t.Context(), "server")
	s.must(err)
	short, err := server.Token(t.Context(), "server", "--ttl=1s")
	s.must(err)
	agents, err := server.Token(t.Context(), "agent")
	s.must(err)
	parts := strings.Split(token, ".")
	with := func(i int, text string) string {
		changed := append([]string(nil), parts...)
		changed[i] = text
		return strings.Join(changed, ".")
	}
	<-time.After(1100 * time.Millisecond) // short has expired
	join := "--join=" + server.api()
	for name, test := range map[string]struct {
		flags []string
		wants []string
	}{
		"no token":                 {[]string{join}, []string{"--token"}},
		"garbled token":            {[]string{join, "--token=balsa1.s.xyz"}, []string{"token"}},
		"wrong secret":             {[]string{join, "--token=" + with(4, strings.Repeat("0", 32))}, []string{"token"}},
		"unknown token":            {[]string{join, "--token=" + with(3, "00000000")}, []string{"token"}},
		"expired token":            {[]string{join, "--token=" + short}, []string{"expired"}},
		"agent's token":            {[]string{join, "--token=" + agents}, []string{"server"}},
		"token of another cluster": {[]string{join, "--token=" + foreign}, []string{"cluster"}},
		"wrong CA":                 {[]string{join, "--token=" + with(2, strings.Repeat("ab", 16))}, []string{"cluster"}},
		"taken name":               {[]string{join, "--token=" + token, "--node-name=" + server.NodeName()}, []string{server.NodeName()}},
	} {
		t.Run(name, func(t *testing.T) {
			other := newHostOn(t, s.spare[1], "--disable-agent")
			other.mustSay(refusedStart(other, test.flags...), test.wants...)
		})
	}
	t.Run("member of another cluster", func(t *testing.T) {
		c := &cluster{Host: stranger.Host, t: t}
		s.must(c.Process().Kill9())
		// It is a member already and stays in its own cluster, whatever the command line says.
		s.must(c.Start("server", "--join="+server.api(), "--token="+token))
		c.eventually("it goes on alone", func() error { _, err := c.Kubectl(t.Context(), "get", "namespace", "default"); return err })
		if out, err := server.Balsa(t.Context(), "members"); err != nil || strings.Contains(out, c.NodeName()+" ") && c.NodeName() != server.NodeName() {
			t.Errorf("a member of another cluster is listed: %s %v", out, err)
		}
	})
	t.Run("garbage and slow-loris", func(t *testing.T) { badBytes(t, s) })
	server.kubectl("get", "configmap", "precious")
	s.agents[0].eventually("the agent is still a member", func() error {
		return server.wants("True", "get", "node", s.agents[0].NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)()
	})
}

// badBytes opens many connections to every port of the server and sends nothing, too little, or nonsense.
func badBytes(t *testing.T, s *several) {
	server := s.servers[0]
	before := pssOf(t, server.Process().PID)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	garbage := make([]byte, 64<<10)
	_, _ = rand.Read(garbage)
	hello := []byte{0x16, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xff} // a ClientHello with a wrong length
	for _, port := range []string{"6443", "7946"} {
		for i := range 300 {
			c, err := s.net.Client.Dial(ctx, "tcp", net.JoinHostPort(server.Addr.String(), port))
			if err != nil {
				break // the server may refuse when there are too many
			}
			switch i % 3 {
			case 0: // sends nothing
			case 1:
				_, _ = c.Write(hello)
			case 2:
				_, _ = c.Write(garbage)
			}
			open = append(open, c)
		}
	}
	udp, err := s.net.Client.Dial(ctx, "udp", net.JoinHostPort(server.Addr.String(), "7946"))
	s.must(err)
	defer udp.Close()
	for i := range 2000 {
		_, _ = udp.Write(garbage[i : i+1200])
	}
	server.kubectl("get", "configmap", "precious")
	if after := pssOf(t, server.Process().PID); after > before+100 {
		t.Errorf("600 bad connections cost %d MiB", after-before)
	}
	// The server closes a connection that sends nothing.
	if len(open) > 0 {
		s.must(open[0].SetReadDeadline(time.Now().Add(40 * time.Second)))
		if _, err := io.ReadAll(open[0]); err != nil {
			t.Errorf("a connection that says nothing is still open after 40 s: %v", err)
		}
	}
	// Refusals are logged once a minute for each address and kind.
	if n := strings.Count(server.Log(), `msg="refused: `); n == 0 || n > 30 {
		t.Errorf("%d lines in the log about 600 bad connections, want a few", n)
	}
}

// pssOf returns a process's memory in MiB.
func pssOf(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, _, _ := strings.Cut(strings.TrimSpace(value), " ")
			kib, _ := strconv.Atoi(n)
			return kib >> 10
		}
	}
	t.Fatal("no Pss")
	return 0
}

func countWord(text, word string) int {
	n := 0
	for _, w := range strings.Fields(text) {
		if w == word {
			n++
		}
	}
	return n
}
