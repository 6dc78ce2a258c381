package openapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/balsahq/balsa/fault"
)

// Aggregated is a group version that another server serves and documents.
type Aggregated struct {
	Group, Version string
	Source         Source
}

// Source is a server that documents what it serves. Each server has one Source, which is comparable.
type Source interface {
	// ServeHTTP passes a request on.
	http.Handler
	// Fetch returns the answer to GET path. The implementation bounds its size and its duration.
	Fetch(ctx context.Context, path string, header http.Header) (status int, answered http.Header, body []byte, err error)
	fmt.Stringer
}

// path returns the path of the v3 document.
func (a Aggregated) path() string { return "apis/" + a.Group + "/" + a.Version }

const (
	// fetchInterval is how long an answer of a source, or its failure, is used; upstream's figure.
	fetchInterval = time.Minute
	// maxConcurrentFetches bounds the sources that are asked at once, and so the memory for reading their documents.
	maxConcurrentFetches = 4
	// maxHeld bounds all documents of aggregated servers together, in bytes.
	maxHeld = 32 << 20
)

// fetched is a document of a source.
type fetched struct {
	status int
	body   []byte
	etag   string
	sum    [sha256.Size]byte
	asked  time.Time
}

type documentKey struct {
	source Source
	path   string
}

// fetchedDocuments holds the answers of sources until the documents are dropped.
type fetchedDocuments struct {
	mu   sync.Mutex // held while sources are asked: one request asks, the others wait
	held map[documentKey]*fetched
}

func (s *fetchedDocuments) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = nil
}

// get returns each source's document at path, not older than a minute. Sources without one are left out.
func (s *fetchedDocuments) get(ctx context.Context, sources []Source, path string) map[Source]*fetched {
	s.mu.Lock()
	defer s.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(maxConcurrentFetches)
	fresh := make([]*fetched, len(sources))
	for i, source := range sources {
		last := s.held[documentKey{source, path}]
		if last != nil && time.Since(last.asked) < fetchInterval {
			fresh[i] = last
			continue
		}
		g.Go(fault.ContainedErr("control/openapi", func() error {
			fresh[i] = fetch(ctx, source, path, last)
			return nil
		}))
	}
	_ = g.Wait() // the functions return nil
	now := map[documentKey]*fetched{}
	for q, old := range s.held { // keep those of present sources
		if q.path != path && slices.Contains(sources, q.source) {
			now[q] = old
		}
	}
	out, size := map[Source]*fetched{}, 0
	for i, source := range sources {
		if size += len(fresh[i].body); size > maxHeld {
			klog.InfoS("OpenAPI documents of an aggregated server are left out: together with the others they are too large", "server", source.String())
			fresh[i] = &fetched{asked: time.Now()}
		}
		now[documentKey{source, path}] = fresh[i]
		if fresh[i].status != 0 {
			out[source] = fresh[i]
		}
	}
	s.held = now
	return out
}

// fetch asks one source. If the source does not answer, its last document stays.
func fetch(ctx context.Context, source Source, path string, last *fetched) *fetched {
	header := http.Header{"Accept": {"application/json"}}
	if last != nil && last.etag != "" {
		header.Set("If-None-Match", last.etag)
	}
	began := time.Now()
	status, answered, body, err := source.Fetch(context.WithoutCancel(ctx), path, header)
	switch {
	case err == nil && (status == http.StatusOK || status == http.StatusNotFound):
		return &fetched{status: status, body: body, etag: answered.Get("Etag"), sum: sha256.Sum256(body), asked: began}
	case err == nil && status == http.StatusNotModified && last != nil:
	case err == nil:
		err = fmt.Errorf("GET %s%s: status %d", source, path, status)
		fallthrough
	default:
		klog.InfoS("Cannot read the OpenAPI document of an aggregated server; its last one stays", "err", err)
	}
	if last == nil {
		last = &fetched{}
	}
	again := *last
	again.asked = began
	return &again
}

// aggregated returns the group versions of other servers, and these servers.
func (d *Documents) aggregated() (all []Aggregated, sources []Source) {
	if d.cfg.Aggregated == nil {
		return nil, nil
	}
	all = d.cfg.Aggregated()
	for _, a := range all {
		if !slices.Contains(sources, a.Source) {
			sources = append(sources, a.Source)
		}
	}
	return all, sources
}

// addAggregated adds the documents of other servers to the index of v3.
func (d *Documents) addAggregated(ctx context.Context, paths map[string]IndexEntry) {
	all, sources := d.aggregated()
	if len(all) == 0 {
		return
	}
	d.restartIdle()
	roots := d.answers.get(ctx, sources, prefix3)
	var old []Source // those that have only v2
	indexes := map[Source]Index{}
	for source, root := range roots {
		var index Index
		if root.status == http.StatusNotFound {
			old = append(old, source)
		} else if err := json.Unmarshal(root.body, &index); err != nil {
			klog.InfoS("Cannot parse an aggregated server's index of OpenAPI v3 documents; they are left out", "server", source.String(), "err", err)
		}
		indexes[source] = index
	}
	var v2 map[Source]*fetched
	if len(old) > 0 {
		v2 = d.answers.get(ctx, sources, prefix2)
	}
	for _, a := range all {
		if entry, ok := indexes[a.Source].Paths[a.path()]; ok && strings.HasPrefix(entry.ServerRelativeURL, prefix3+"/"+a.path()) {
			paths[a.path()] = entry
		} else if doc := v2[a.Source]; slices.Contains(old, a.Source) && doc != nil && doc.status == http.StatusOK {
			paths[a.path()] = IndexEntry{ServerRelativeURL: prefix3 + "/" + a.path() + "?hash=" + fmt.Sprintf("%X", doc.sum)}
		}
	}
}

// source returns the server that documents a path of v3, nil if it is this server.
func (d *Documents) source(path string) (found *Aggregated) {
	all, _ := d.aggregated()
	for _, a := range all {
		if a.path() == path {
			return &a
		}
	}
	return nil
}

// serveAggregated answers for another server. It passes the request on, or, for a server that has only v2, converts its
// v2 document.
func (d *Documents) serveAggregated(w http.ResponseWriter, r *http.Request, a *Aggregated) {
	d.restartIdle()
	_, sources := d.aggregated()
	if root := d.answers.get(r.Context(), sources, prefix3)[a.Source]; root == nil || root.status != http.StatusNotFound {
		a.Source.ServeHTTP(w, r)
		return
	}
	doc := d.answers.get(r.Context(), sources, prefix2)[a.Source]
	if doc == nil || doc.status != http.StatusOK {
		fail(w, fmt.Errorf("%w: %s", ErrNoDocument, a.path()))
		return
	}
	d.serve3(w, r, a.path(), fmt.Sprintf("%X", doc.sum), func(proto bool) ([]byte, error) {
		swagger, err := filterGroups(doc, []Aggregated{*a})
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(openapiconv.ConvertV2ToV3(swagger))
		if err != nil || !proto {
			return data, err
		}
		return handler3.ToV3ProtoBinary(data)
	})
}

// filterGroups returns the part of a document about some group versions.
func filterGroups(doc *fetched, about []Aggregated) (*spec.Swagger, error) {
	swagger := &spec.Swagger{}
	if err := swagger.UnmarshalJSON(doc.body); err != nil {
		return nil, err
	}
	var keep []string
	for _, a := range about {
		keep = append(keep, "/"+a.path()+"/")
	}
	return aggregator.FilterSpecByPathsWithoutSideEffects(swagger, keep), nil
}

// aggregatedV2 holds the v2 documents of other servers.
type aggregatedV2 struct {
	all     []Aggregated
	sources []Source
	said    map[Source]*fetched
}

func (d *Documents) others(ctx context.Context) aggregatedV2 {
	all, sources := d.aggregated()
	if len(all) == 0 {
		return aggregatedV2{}
	}
	d.restartIdle()
	return aggregatedV2{all, sources, d.answers.get(ctx, sources, prefix2)}
}

// hash identifies the content of o.
func (o aggregatedV2) hash() string {
	var b strings.Builder
	for _, a := range o.all {
		if doc := o.said[a.Source]; doc != nil {
			fmt.Fprintf(&b, "%s %X\n", a.path(), doc.sum)
		}
	}
	return b.String()
}

// merge adds the documents to the one of this server. A document that cannot be merged is left out.
func (o aggregatedV2) merge(into *spec.Swagger) (*spec.Swagger, error) {
	for _, source := range o.sources {
		doc := o.said[source]
		if doc == nil || doc.status != http.StatusOK {
			continue
		}
		about := slices.DeleteFunc(slices.Clone(o.all), func(a Aggregated) bool { return a.Source != source })
		part, err := filterGroups(doc, about)
		if err == nil {
			whole := *into // merge into a copy, so that a failure leaves no half
			whole.Definitions, whole.Parameters = maps.Clone(into.Definitions), maps.Clone(into.Parameters)
			paths := *into.Paths
			paths.Paths = maps.Clone(paths.Paths)
			whole.Paths = &paths
			if err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&whole, part); err == nil {
				into = &whole
			}
		}
		if err != nil {
			klog.InfoS("Cannot merge an aggregated server's OpenAPI document; it is left out", "server", source.String(), "err", err)
		}
	}
	return into, nil
}
