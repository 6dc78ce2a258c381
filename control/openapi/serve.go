package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/spec3"
)

const (
	prefix2 = "/openapi/v2"
	prefix3 = "/openapi/v3"
)

// Index is the answer to GET /openapi/v3.
type Index struct {
	Paths map[string]IndexEntry `json:"paths"`
}

// IndexEntry is the URL of one document; the hash in it changes with the document.
type IndexEntry struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

// buildID identifies the program that makes the documents.
func buildID(version string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	return version + "\n" + info.String()
}

// hash returns the ETag of a document. A document is a function of the program, the path and the definitions of custom
// resources below it.
func (d *Documents) hash(path string) string {
	sum := sha512.Sum512([]byte(d.build + "\n" + path + "\n" + d.custom().hash(path)))
	return fmt.Sprintf("%X", sum[:])
}

// Index returns the list of v3 documents.
func (d *Documents) Index() Index {
	index := Index{Paths: map[string]IndexEntry{}}
	for _, p := range d.paths() {
		index.Paths[p] = IndexEntry{ServerRelativeURL: prefix3 + "/" + p + "?hash=" + d.hash(p)}
	}
	return index
}

// ServeV2 answers /openapi/v2.
func (d *Documents) ServeV2(w http.ResponseWriter, r *http.Request) {
	h, err := d.handler2(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	h.ServeHTTP(w, r)
}

// ServeV3 answers /openapi/v3 and everything below it.
func (d *Documents) ServeV3(w http.ResponseWriter, r *http.Request) {
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, prefix3), "/")
	if path == "" {
		index := d.Index()
		d.addAggregated(r.Context(), index.Paths)
		WriteIndex(w, r, index)
		return
	}
	if a := d.source(path); a != nil {
		d.serveAggregated(w, r, a)
		return
	}
	d.serve3(w, r, path, d.hash(path), func(proto bool) ([]byte, error) { return d.document3(path, proto) })
}

// serve3 answers with the document of a path, in the encoding that the client accepts.
func (d *Documents) serve3(w http.ResponseWriter, r *http.Request, path, etag string, document func(proto bool) ([]byte, error)) {
	kind, ok := accepted(r.Header.Get("Accept"))
	w.Header().Add("Vary", "Accept")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	data, err := document(kind.proto)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", kind.contentType)
	w.Header().Set("Etag", strconv.Quote(etag))
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != etag {
			http.Redirect(w, r, prefix3+"/"+path+"?hash="+etag, http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// WriteIndex answers with index and the ETag of its text.
func WriteIndex(w http.ResponseWriter, r *http.Request, index Index) {
	data, err := json.Marshal(index)
	if err != nil {
		fail(w, err)
		return
	}
	sum := sha512.Sum512(data)
	w.Header().Set("Etag", strconv.Quote(fmt.Sprintf("%X", sum[:])))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func fail(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrNoDocument) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	klog.ErrorS(err, "OpenAPI document")
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

type encoding struct {
	contentType string
	proto       bool
}

const protoType = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"

// accepted returns the encoding that the Accept header asks for.
func accepted(header string) (encoding, bool) {
	if header == "" {
		header = "*/*"
	}
	for _, c := range goautoneg.ParseAccept(header) {
		switch full := c.Type + "/" + c.SubType; full {
		case "application/json", "application/*", "*/*":
			return encoding{contentType: "application/json"}, true
		case protoType, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf":
			return encoding{contentType: protoType, proto: true}, true
		}
	}
	return encoding{}, false
}

// groupVersion parses "api/v1" and "apis/GROUP/VERSION".
func groupVersion(path string) (group, version string, ok bool) {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		return "", parts[1], true
	case len(parts) == 3 && parts[0] == "apis":
		return parts[1], parts[2], true
	}
	return "", "", false
}

const gvkExtension = "x-kubernetes-group-version-kind"

// ownKinds reduces the group version lists of meta kinds (WatchEvent, DeleteOptions) to this document's group and the
// core group. Every group registers these kinds, so that each document would list some sixty groups.
func ownKinds(doc *spec3.OpenAPI, group, version string) {
	if doc == nil || doc.Components == nil {
		return
	}
	for _, s := range doc.Components.Schemas {
		list, ok := s.Extensions[gvkExtension].([]any)
		if !ok || len(list) < 2 {
			continue
		}
		var own []any
		everywhere := false
		for _, item := range list {
			gvk, _ := item.(map[string]any)
			kind, _ := gvk["kind"].(string)
			everywhere = everywhere || kind == "WatchEvent" || kind == "DeleteOptions"
			if gvk["group"] == group && gvk["version"] == version || gvk["group"] == "" && gvk["version"] == "v1" {
				own = append(own, item)
			}
		}
		if everywhere && len(own) > 0 {
			s.Extensions[gvkExtension] = own
		}
	}
}
