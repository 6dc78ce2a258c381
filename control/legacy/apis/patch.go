package apis

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// maxAttempts is how often a patch is applied to an object that others change at the same time; upstream's number.
const maxAttempts = 5

// patch applies the patch to the object in the old version, and sends on what that changes in the served version.
func (c call) patch(w http.ResponseWriter, r *http.Request) error {
	b, err := c.read(r)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		current := c.ask(http.Header{}, getOf(r))
		if current.status != http.StatusOK {
			for name, values := range current.header {
				w.Header()[name] = values
			}
			w.WriteHeader(current.status)
			_, _ = w.Write(current.body.Bytes()) // the client is gone
			return nil
		}
		change, err := c.change(current.body.Bytes(), b)
		if err != nil {
			return err
		}
		sent := withBody(r, change, string(apitypes.MergePatchType))
		header := http.Header{}
		a := c.ask(header, sent)
		if a.status == http.StatusConflict && attempt < maxAttempts {
			continue
		}
		data, err := c.answer(a)
		if err != nil {
			return err
		}
		for name, values := range header {
			w.Header()[name] = append(w.Header()[name], values...)
		}
		w.Header().Del("Content-Length")
		w.WriteHeader(a.status)
		_, _ = w.Write(data) // the client is gone
		return nil
	}
}

// getOf is the request that reads the object of a patch. It needs no right of its own: the answer to the patch shows the
// whole object.
func getOf(r *http.Request) *http.Request {
	ctx := r.Context()
	if info, ok := apirequest.RequestInfoFrom(ctx); ok {
		get := *info
		get.Verb = "get"
		ctx = apirequest.WithRequestInfo(ctx, &get)
	}
	get := r.Clone(ctx)
	get.Method, get.Body, get.ContentLength = http.MethodGet, http.NoBody, 0
	get.URL = moved(r.URL, r.URL.Path)
	get.URL.RawQuery = ""
	get.Header.Set("Accept", "application/json")
	return get
}

// change returns the merge patch that a patch of the old version is in the served one, for an object of the served
// version. It names the object's resourceVersion unless the patch does.
func (m *mapping) change(current []byte, p body) ([]byte, error) {
	old, err := m.toOld(current)
	if err != nil {
		return nil, err
	}
	patched, err := m.apply(old, p)
	if err != nil {
		return nil, err
	}
	before, _, err := m.toServed(body{data: old})
	if err != nil {
		return nil, err
	}
	after, _, err := m.toServed(body{data: patched})
	if err != nil {
		return nil, err
	}
	change, err := jsonpatch.CreateMergePatch(before, after)
	if err != nil {
		return nil, err
	}
	return pinned(change, before)
}

// pinned is a merge patch under the resourceVersion of the object.
func pinned(change, object []byte) ([]byte, error) {
	var have struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	fields := map[string]any{}
	if err := json.Unmarshal(object, &have); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(change, &fields); err != nil {
		return nil, err
	}
	meta, ok := fields["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		fields["metadata"] = meta
	}
	if _, given := meta["resourceVersion"]; !given {
		meta["resourceVersion"] = have.Metadata.ResourceVersion
	}
	return json.Marshal(fields)
}

// apply returns an object of the old version with the patch applied.
func (m *mapping) apply(old []byte, p body) ([]byte, error) {
	media, _, err := mime.ParseMediaType(p.contentType)
	if err != nil {
		media = p.contentType
	}
	var patched []byte
	switch apitypes.PatchType(media) {
	case apitypes.MergePatchType:
		patched, err = jsonpatch.MergePatch(old, p.data)
	case apitypes.JSONPatchType:
		var operations jsonpatch.Patch
		if operations, err = jsonpatch.DecodePatch(p.data); err == nil {
			patched, err = operations.Apply(old)
		}
	case apitypes.StrategicMergePatchType:
		like, failed := types().scheme.New(m.old.WithKind(m.kind.name))
		if failed != nil {
			return nil, failed
		}
		patched, err = strategicpatch.StrategicMergePatch(old, p.data, like)
	default:
		text := fmt.Sprintf("patches of type %s are not accepted for %s: write the manifest as %s", media, m.old, m.served)
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", text, 0, false)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return patched, nil
}
