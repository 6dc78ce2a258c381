package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

const (
	namespaceMany = "bench-many"
	namespacePods = "bench-pods"
	many          = 10_000
	pageSize      = 500
	groups        = 10 // values of a label, spread evenly
)

var manyPath = load.ConfigMapsPath(namespaceMany)

// makeMany creates the objects that are listed; each has one of a few label values.
func (b *bench) makeMany(ctx context.Context, s *system) error {
	if err := s.namespace(ctx, namespaceMany); err != nil {
		return err
	}
	return s.once("many objects", func() error {
		b.progress("%d objects on %s", many, s.name)
		var templates [groups]*load.Template
		for i := range templates {
			body := load.Protobuf.ConfigMap(nameMark, stampMark, map[string]string{"group": fmt.Sprintf("g%d", i)})
			templates[i] = must(load.NewTemplate(body, nameMark, stampMark))
		}
		return b.fill(ctx, s, many, func(i int) (string, []byte) {
			return manyPath, templates[i%groups].Fill(fixedName(i), stamp())
		})
	})
}

// listLevels returns the numbers of concurrent clients, each with the number of rounds. Upstream takes most of a minute
// for a quarter of a thousand such lists.
func (b *bench) listLevels() map[int]int {
	if b.quick {
		return map[int]int{1: 1, 16: 1}
	}
	return map[int]int{1: b.rounds, 16: b.rounds, 64: 1, 256: 1}
}

// measureLists lists many ConfigMaps: all at once, in pages, and those with a label.
func measureLists(ctx context.Context, b *bench) error {
	b.loaded = true
	for _, s := range b.systems {
		if err := b.makeMany(ctx, s); err != nil {
			return err
		}
	}
	rounds := b.listLevels()
	for _, f := range forms {
		for _, level := range levels {
			if rounds[level] == 0 {
				continue
			}
			l := listing{name: fmt.Sprintf("list of %d, %s, %s", many, f.Name, clients(level)), level: level, rounds: rounds[level]}
			if level == 1 {
				l.aim = map[*load.Encoding]string{load.JSON: "100", load.Protobuf: "30"}[f.Encoding]
			}
			if err := b.list(ctx, l, one(f, manyPath)); err != nil {
				return err
			}
		}
		pages := listing{name: fmt.Sprintf("list of %d in pages of %d, %s, 1 client", many, pageSize, f.Name), level: 1, rounds: b.rounds}
		if err := b.list(ctx, pages, paged(f, manyPath)); err != nil {
			return err
		}
		selected := listing{name: fmt.Sprintf("list of %d of %d by a label, %s, 1 client", many/groups, many, f.Name), level: 1, rounds: b.rounds}
		if err := b.list(ctx, selected, one(f, manyPath+"?labelSelector=group%3Dg3")); err != nil {
			return err
		}
	}
	return nil
}

// listing is one kind of list.
type listing struct {
	name          string
	level, rounds int
	aim           string // for the median time; "" if only the ratio has one
}

// list measures one kind of list on the systems in turns.
func (b *bench) list(ctx context.Context, l listing, do func(c *load.Conn) error) error {
	b.progress("%s", l.name)
	for _, s := range b.systems {
		conns, err := s.connect(ctx, l.level)
		if err != nil {
			return err
		}
		if err := do(conns[0]); err != nil { // warms up
			return fmt.Errorf("%s, %s: %w", l.name, s.name, err)
		}
	}
	for round := range l.rounds {
		for _, s := range b.turns(round) {
			if _, err := s.connect(ctx, l.level); err != nil {
				return err
			}
			profiled := b.profile(s, l.name, b.window)
			o, err := load.Window(ctx, l.level, b.window, s.cpu, func(_ context.Context, client int) error { return do(s.conns[client]) })
			if err != nil {
				return fmt.Errorf("%s, %s: %w", l.name, s.name, err)
			}
			if err := profiled(); err != nil {
				return err
			}
			b.add(s, l.name+": p50", "ms", l.aim, figures.Quantile(o.Latencies, 0.5))
			b.add(s, l.name+": p99", "ms", aimP99, figures.Quantile(o.Latencies, 0.99))
			b.add(s, l.name+": server CPU", "ms each", aimCPU, o.CPUEach()/1e3)
		}
	}
	return nil
}

// one reads a list in one answer.
func one(f *form, path string) func(*load.Conn) error {
	return func(c *load.Conn) error { return c.Do(f.request(http.MethodGet, path, nil), nil) }
}

// paged reads a list page by page.
func paged(f *form, path string) func(*load.Conn) error {
	return func(c *load.Conn) error {
		next := ""
		for range many/pageSize + 1 {
			url := fmt.Sprintf("%s?limit=%d", path, pageSize)
			if next != "" {
				url += "&continue=" + next
			}
			var head []byte
			err := c.Do(f.request(http.MethodGet, url, nil), func(data []byte) error {
				if len(head) < 4096 {
					head = append(head, data[:min(len(data), 4096)]...)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if next = continueToken(head); next == "" {
				return nil
			}
		}
		return errors.New("a list has more pages than it should")
	}
}

// tokenMark is the start of every continue token: {"v": in base64.
var tokenMark = []byte("eyJ2Ijoi")

// continueToken returns the token at the start of an answer, in any encoding; "" if there is none.
func continueToken(head []byte) string {
	i := bytes.Index(head, tokenMark)
	if i < 0 {
		return ""
	}
	token := head[i:]
	end := bytes.IndexFunc(token, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
	return string(token[:max(end, 0)])
}

// measurePods lists many pods that are not scheduled.
func measurePods(ctx context.Context, b *bench) error {
	if b.quick {
		return nil
	}
	b.loaded = true
	path := "/api/v1/namespaces/" + namespacePods + "/pods"
	template := must(load.NewTemplate(load.Protobuf.Encode(gatedPod()), nameMark))
	for _, s := range b.systems {
		if err := s.namespace(ctx, namespacePods); err != nil {
			return err
		}
		account := map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default"}}
		if err := s.make(ctx, "/api/v1/namespaces/"+namespacePods+"/serviceaccounts", account); err != nil {
			return err
		}
		err := s.once("many pods", func() error {
			b.progress("%d pods on %s", many, s.name)
			return b.fill(ctx, s, many, func(i int) (string, []byte) { return path, template.Fill(fixedName(i)) })
		})
		if err != nil {
			return err
		}
	}
	pause(ctx, 2*time.Second) // controllers have seen them
	for _, f := range forms {
		l := listing{name: fmt.Sprintf("list of %d pods, %s, 1 client", many, f.Name), level: 1, rounds: b.rounds}
		if err := b.list(ctx, l, one(f, path)); err != nil {
			return err
		}
	}
	return nil
}

// gatedPod returns a pod with a scheduling gate that no controller removes.
func gatedPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: nameMark, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "balsa.dev/bench"}},
			Containers:      []corev1.Container{{Name: "main", Image: "registry.example/image:1", Env: []corev1.EnvVar{{Name: "KEY", Value: "value"}}}},
		},
	}
}
