package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"google.golang.org/protobuf/encoding/protowire"
)

const gossipPort = "7946"

// gossipAttacks are attacks on the servers' gossip.
func (w *world) gossipAttacks() []attack {
	return []attack{
		{"the gossip key in the agent's files", func(context.Context) error {
			if len(w.agentKeys) > 0 {
				return nil
			}
			return fmt.Errorf("%w: there is none", errRefused)
		}, func(context.Context) error { _, err := w.serverKey(); return err }},
		{"taking part in gossip with a key of its own", func(ctx context.Context) error {
			key := make([]byte, 32)
			_, _ = rand.Read(key)
			return w.gossip(key)
		}, func(context.Context) error {
			key, err := w.serverKey()
			if err != nil {
				return err
			}
			return w.gossip(key)
		}},
		{"deaths, suspicions and departures of servers with the highest incarnation", w.rumours, w.serversLive},
	}
}

func (w *world) serverKey() ([]byte, error) {
	_, _, keys, err := memberOf(w.serverDir)
	if err == nil && len(keys) == 0 {
		err = errors.New("a server's files hold no gossip key: this test has to look for it elsewhere")
	}
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

// gossip exchanges tables with a server.
func (w *world) gossip(key []byte) error {
	host, _, err := cutPort(w.server)
	if err != nil {
		return err
	}
	c := memberlist.DefaultLANConfig()
	c.Name, c.BindAddr, c.AdvertiseAddr, c.BindPort = "hostile", w.address, w.address, 17946
	c.SecretKey, c.Label, c.Logger = key, w.clusterID, log.New(io.Discard, "", 0)
	list, err := memberlist.Create(c)
	if err != nil {
		return fmt.Errorf("start gossip: %v", err)
	}
	defer func() { _ = list.Shutdown() }()
	if _, err := list.Join([]string{net.JoinHostPort(host, gossipPort)}); err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	return nil
}

// Types of memberlist's messages.
const (
	messageSuspect = 1
	messageAlive   = 4
	messageDead    = 5
	messageLabel   = 244
)

// rumours tells every server that each server is dead, suspected and gone, with an incarnation that no server can
// refute, and checks whether a server believes it.
func (w *world) rumours(ctx context.Context) error {
	servers, err := w.servers(ctx)
	if err != nil {
		return fmt.Errorf("list servers: %v", err)
	}
	for _, to := range servers {
		c, err := net.Dial("udp", net.JoinHostPort(to.host, gossipPort))
		if err != nil {
			return fmt.Errorf("dial: %v", err)
		}
		for _, about := range servers {
			for _, from := range []string{w.node, about.name} { // from itself: it has left
				for _, kind := range []byte{messageSuspect, messageAlive, messageDead} {
					body := rumour(kind, about.name, from)
					for _, packet := range [][]byte{body, append(append([]byte{messageLabel, byte(len(w.clusterID))}, w.clusterID...), body...)} {
						for range 5 {
							_, _ = c.Write(packet)
						}
					}
				}
			}
		}
		_ = c.Close()
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if w.serversLive(ctx) != nil {
			return nil // it was believed
		}
	}
	return fmt.Errorf("%w: all servers stay alive", errRefused)
}

// rumour returns a message of memberlist: its type, and a map in MessagePack.
func rumour(kind byte, node, from string) []byte {
	text := func(b []byte, s string) []byte { return append(append(b, 0xd9, byte(len(s))), s...) }
	out := append([]byte{kind, 0x83}, 0xab)
	out = append(out, "Incarnation"...)
	out = append(out, 0xce, 0xff, 0xff, 0xff, 0xff)
	out = text(text(out, "Node"), node)
	return text(text(out, "From"), from)
}

type serverAt struct{ name, host string }

// servers returns the cluster's servers, from the member list of the gRPC service.
func (w *world) servers(ctx context.Context) (list []serverAt, err error) {
	answer, err := w.call(ctx, w.adminPair, "Members", nil)
	if err != nil {
		return nil, err
	}
	for _, m := range repeated(answer, 1) {
		if len(fieldOf(m, 2)) == 0 { // it is an agent
			continue
		}
		host, _, err := net.SplitHostPort(string(fieldOf(m, 10)))
		if err != nil {
			return nil, err
		}
		list = append(list, serverAt{string(fieldOf(m, 1)), host})
	}
	return list, nil
}

// serversLive returns nil if all servers and the victim are alive.
func (w *world) serversLive(ctx context.Context) error {
	answer, err := w.call(ctx, w.adminPair, "Members", nil)
	if err != nil {
		return err
	}
	var gone []string
	for _, m := range repeated(answer, 1) {
		other := len(fieldOf(m, 2)) > 0 || string(fieldOf(m, 1)) == w.victim // an agent may harm itself
		if other && number(m, 4) != 1 {
			gone = append(gone, string(fieldOf(m, 1)))
		}
	}
	if len(gone) > 0 {
		return errors.New("not alive: " + strings.Join(gone, ", "))
	}
	return nil
}

// repeated returns all fields with a number that hold messages.
func repeated(in []byte, want protowire.Number) (list [][]byte) {
	for len(in) > 0 {
		n, kind, size := protowire.ConsumeTag(in)
		if size < 0 {
			return list
		}
		in = in[size:]
		if size = protowire.ConsumeFieldValue(n, kind, in); size < 0 {
			return list
		}
		if n == want && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(in)
			list = append(list, value)
		}
		in = in[size:]
	}
	return list
}

// number returns the last field with a number that holds an integer.
func number(in []byte, want protowire.Number) (found uint64) {
	for len(in) > 0 {
		n, kind, size := protowire.ConsumeTag(in)
		if size < 0 {
			return found
		}
		in = in[size:]
		if size = protowire.ConsumeFieldValue(n, kind, in); size < 0 {
			return found
		}
		if n == want && kind == protowire.VarintType {
			found, _ = protowire.ConsumeVarint(in)
		}
		in = in[size:]
	}
	return found
}
