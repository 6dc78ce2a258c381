package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// From linux/netfilter/nf_tables.h and nfnetlink.h.
const (
	nftNewGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	nftGetGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	nftGroup         = 7 // NFNLGRP_NFTABLES
	generationID     = 1 // NFTA_GEN_ID
	headers          = unix.SizeofNlMsghdr + 4
)

// sightings records when changes with an address were committed to the nftables of a namespace.
type sightings struct {
	fd     int
	wanted chan netip.Addr
	seen   chan sighting
	ended  chan struct{}
}

// sighting is an address and the time of its commit, as the kernel reported it.
type sighting struct {
	addr netip.Addr
	at   time.Time
}

// watchRules listens until close.
func (p place) watchRules() (*sightings, error) {
	s := &sightings{wanted: make(chan netip.Addr, 1024), seen: make(chan sighting, 1024), ended: make(chan struct{})}
	err := p.within(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (nftGroup - 1)}),
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		)
	})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	go s.read()
	return s, nil
}

// close ends the listening; the sightings must not be used afterwards.
func (s *sightings) close() {
	close(s.wanted)
	<-s.ended
}

// look starts to look for an address.
func (s *sightings) look(addr netip.Addr) { s.wanted <- addr }

func (s *sightings) read() {
	defer close(s.ended)
	defer unix.Close(s.fd)
	buffer, looking := make([]byte, 1<<20), map[netip.Addr]bool{}
	for {
		n, err := unix.Read(s.fd, buffer)
		at := time.Now()
		for more := true; more; { // addresses that were passed to look before the change are read here before it
			select {
			case addr, open := <-s.wanted:
				if !open {
					return
				}
				looking[addr] = false
			default:
				more = false
			}
		}
		if err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
				continue
			}
			return
		}
		for _, addr := range committed(buffer[:n], looking) {
			delete(looking, addr)
			s.seen <- sighting{addr, at}
		}
	}
}

// committed marks the addresses in messages, and returns those whose commit is in messages too.
func committed(messages []byte, looking map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for len(messages) >= headers {
		size := min(int(binary.NativeEndian.Uint32(messages)), len(messages))
		kind := binary.NativeEndian.Uint16(messages[4:])
		if size < headers {
			break
		}
		for addr, noted := range looking {
			switch {
			case kind != nftNewGeneration && !noted && bytes.Contains(messages[headers:size], addr.AsSlice()):
				looking[addr] = true
			case kind == nftNewGeneration && noted:
				out = append(out, addr)
				delete(looking, addr)
			}
		}
		messages = messages[min((size+3)&^3, len(messages)):]
	}
	return out
}

// wait returns the time at which the address was committed.
func (s *sightings) wait(ctx context.Context, addr netip.Addr, patience time.Duration) (time.Time, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case seen := <-s.seen:
			if seen.addr == addr {
				return seen.at, nil
			}
		case <-timer.C:
			return time.Time{}, fmt.Errorf("%s is not in the kernel after %s", addr, patience)
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// generation counts the commits to the nftables of a namespace. It polls the kernel, which slows the writer less than
// listening.
type generation struct{ fd int }

func (p place) generation() (*generation, error) {
	g := &generation{}
	err := p.within(func() (err error) {
		g.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	return g, err
}

func (g *generation) close() { unix.Close(g.fd) }

func (g *generation) now() (uint32, error) {
	request := make([]byte, headers)
	binary.NativeEndian.PutUint32(request, headers)
	binary.NativeEndian.PutUint16(request[4:], nftGetGeneration)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(g.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	answer := make([]byte, 4096)
	n, err := unix.Read(g.fd, answer)
	if err != nil {
		return 0, fmt.Errorf("the generation of nftables: %w", err)
	}
	for rest := answer[min(headers, n):n]; len(rest) >= 8; {
		size, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if kind == generationID {
			return binary.BigEndian.Uint32(rest[4:]), nil
		}
		rest = rest[min(max(4, (size+3)&^3), len(rest)):]
	}
	return 0, errors.New("the kernel tells no generation of nftables")
}

// settled waits until there was no commit for a while and there returns nil, and returns the time of the last commit.
// It polls 50 times a second.
func (g *generation) settled(ctx context.Context, patience, quiet time.Duration, there func() error) (time.Time, error) {
	before, err := g.now()
	if err != nil {
		return time.Time{}, err
	}
	first, last := before, time.Time{}
	err = until(ctx, patience, func() error {
		now, err := g.now()
		switch {
		case err != nil:
			return err
		case now != before:
			before, last = now, time.Now()
		}
		if now == first {
			return errors.New("nothing was committed")
		}
		if time.Since(last) < quiet {
			return errors.New("there are still commits")
		}
		return there()
	})
	return last, err
}

// entries returns the number of elements in the largest named set or map of the namespace: every Service is in one.
func (p place) entries() (int, error) {
	most := 0
	err := p.withRules(func(conn *nftables.Conn) error {
		tables, err := conn.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			sets, err := conn.GetSets(table)
			if err != nil {
				return err
			}
			for _, set := range sets {
				if set.Anonymous {
					continue
				}
				elements, err := conn.GetSetElements(set)
				if err != nil {
					return err
				}
				most = max(most, len(elements))
			}
		}
		return nil
	})
	return most, err
}

// dropRules removes all tables.
func (p place) dropRules() error {
	return p.withRules(func(conn *nftables.Conn) error {
		conn.FlushRuleset()
		return conn.Flush()
	})
}

// track makes the kernel look up the connection of every forwarded packet, with one rule, the least that does it.
func (p place) track() error {
	return p.withRules(func(conn *nftables.Conn) error {
		table := conn.AddTable(&nftables.Table{Name: "tracked", Family: nftables.TableFamilyIPv4})
		chain := conn.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		established := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED)
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: established, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		}})
		return conn.Flush()
	})
}

func (p place) withRules(do func(*nftables.Conn) error) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(p.ns)))
	if err != nil {
		return err
	}
	return do(conn)
}
