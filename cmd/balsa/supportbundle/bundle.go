// Package supportbundle writes the data for an analysis of a cluster's faults to one file: logs, goroutines, metrics,
// settings, members, the result of `balsa check`, and the objects. Secrets are not in it.
//
//	processes: log, goroutines, metrics, settings ─┐
//	the API: objects, health, version ─────────────┼─▶ redact (pure) ─▶ scrub known values ─▶ tar.gz, 0600
//	members, check ────────────────────────────────┘
//
// Secrets are kept out in three ways. Objects of kind Secret are not written to the bundle, and fields of other objects
// that may be secret are removed. Text that looks like a token or a key is removed from every file. If the caller may read
// Secrets, their values are read, kept only in memory, and removed from every file, including logs.
package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxFile bounds one file of the bundle, in bytes; a longer one keeps its end, which is the newest part of a log.
	maxFile = 32 << 20
	// pageSize is how many objects are read at once, and maxObjects how many of a resource are in the bundle.
	pageSize, maxObjects = 500, 5000
)

// Source is a file of the bundle, made by Write: the output of a command, or what a process says of itself.
type Source struct {
	Name  string // path in the bundle
	Write func(ctx context.Context, w io.Writer) error
}

// Config is what a bundle is made of.
type Config struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Sources []Source
	// Say tells people what is being done, and what failed.
	Say func(format string, args ...any)
}

// Create makes the bundle at path, which must not exist. Data that cannot be read is listed in the file errors.txt of the
// bundle, and is no error.
func Create(ctx context.Context, path string, cfg Config) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path)
		}
	}()
	z := gzip.NewWriter(f)
	b := &bundle{cfg: cfg, tar: tar.NewWriter(z), at: time.Now()}
	b.know(ctx)
	for _, s := range cfg.Sources {
		if err := b.source(ctx, s); err != nil {
			return err
		}
	}
	if err := b.objects(ctx); err != nil {
		return err
	}
	if err := b.file("errors.txt", []byte(strings.Join(b.troubles, "\n")+"\n")); err != nil {
		return err
	}
	return errors.Join(b.tar.Close(), z.Close(), ctx.Err())
}

// bundle is one that is being made.
type bundle struct {
	cfg      Config
	tar      *tar.Writer
	at       time.Time
	scrub    scrubber
	troubles []string
}

func (b *bundle) trouble(what string, err error) {
	b.troubles = append(b.troubles, what+": "+err.Error())
	b.cfg.Say("%s: %v", what, err)
}

// know reads the values of all Secrets, so that they can be taken out of every file.
func (b *bundle) know(ctx context.Context) {
	var values [][]byte
	next := ""
	for {
		page, err := b.cfg.Client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			b.trouble("Secrets cannot be read, so that their values cannot be looked for in logs", err)
			break
		}
		for i := range page.Items {
			for _, v := range page.Items[i].Data {
				values = append(values, v)
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	b.scrub = newScrubber(values)
}

func (b *bundle) source(ctx context.Context, s Source) error {
	b.cfg.Say("%s", s.Name)
	out := &ending{most: maxFile}
	if err := s.Write(ctx, out); err != nil {
		b.trouble(s.Name, err)
	}
	return b.file(s.Name, out.data)
}

// file adds a file, without secrets.
func (b *bundle) file(name string, data []byte) error {
	data = b.scrub.clean(data)
	if err := b.tar.WriteHeader(&tar.Header{Name: "balsa-support/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.at}); err != nil {
		return err
	}
	_, err := b.tar.Write(data)
	return err
}

// objects adds the objects of every resource that can be listed, a file each.
func (b *bundle) objects(ctx context.Context) error {
	lists, err := discovery.ServerPreferredResources(b.cfg.Client.Discovery())
	if err != nil {
		b.trouble("some API groups cannot be read", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || strings.Contains(r.Name, "/") || gv.Group == "" && r.Name == "secrets" {
				continue
			}
			if err := b.resource(ctx, gv.WithResource(r.Name)); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (b *bundle) resource(ctx context.Context, gvr schema.GroupVersionResource) error {
	var items []any
	next := ""
	for len(items) < maxObjects {
		page, err := b.cfg.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			b.trouble("objects of "+gvr.String(), err)
			break
		}
		for i := range page.Items {
			items = append(items, clean(gvr, &page.Items[i]))
		}
		if next = page.GetContinue(); next == "" {
			break
		}
	}
	if next != "" {
		b.troubles = append(b.troubles, fmt.Sprintf("only the first %d objects of %s are here", len(items), gvr))
	}
	if len(items) == 0 {
		return nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(items); err != nil {
		return err
	}
	name := gvr.Resource
	if gvr.Group != "" {
		name += "." + gvr.Group
	}
	return b.file("objects/"+name+".json", out.Bytes())
}

func clean(gvr schema.GroupVersionResource, o *unstructured.Unstructured) map[string]any {
	object(gvr.Group, gvr.Resource, o.Object)
	return o.Object
}

// ending keeps the last bytes of what is written to it.
type ending struct {
	data []byte
	most int
}

// Write implements io.Writer.
func (e *ending) Write(p []byte) (int, error) {
	e.data = append(e.data, p...)
	if len(e.data) > 2*e.most {
		e.data = append(e.data[:0], e.data[len(e.data)-e.most:]...)
	}
	return len(p), nil
}
