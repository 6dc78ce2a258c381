package openapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// elder is a server that documents itself only in v2.
type elder struct {
	asked map[string]int
	down  bool
	text  string
}

func (e *elder) String() string { return "elder" }

func (e *elder) ServeHTTP(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }

func (e *elder) Fetch(_ context.Context, path string, _ http.Header) (int, http.Header, []byte, error) {
	e.asked[path]++
	switch {
	case e.down:
		return 0, nil, nil, errors.New("down")
	case path != prefix2:
		return http.StatusNotFound, http.Header{}, nil, nil
	}
	return http.StatusOK, http.Header{}, []byte(e.text), nil
}

const elderly = `{"swagger":"2.0","info":{"title":"Elder","version":"1"},"paths":{
	"/apis/old.example.com/v1/stones":{"get":{"responses":{"200":{"description":"stones","schema":{"$ref":"#/definitions/Stone"}}}}},
	"/apis/private.example.com/v1/secrets":{"get":{"responses":{"200":{"description":"not registered"}}}}},
	"definitions":{"Stone":{"type":"object","properties":{"weight":{"type":"integer"}}}}}`

func TestAServerThatKnowsV2AloneIsShownInBothVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var built int
		d, e := documents(t, &built), &elder{asked: map[string]int{}, text: elderly}
		d.cfg.Aggregated = func() []Aggregated { return []Aggregated{{Group: "old.example.com", Version: "v1", Source: e}} }
		index := get(d.ServeV3, "/openapi/v3", "").Body.String()
		if !strings.Contains(index, `"apis/old.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/old.example.com/v1?hash=`) {
			t.Errorf("index: %s", index)
		}
		w := get(d.ServeV3, "/openapi/v3/apis/old.example.com/v1", "application/json")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"openapi":"3`) || !strings.Contains(w.Body.String(), "weight") || strings.Contains(w.Body.String(), "secrets") {
			t.Errorf("v3: %d %s", w.Code, w.Body)
		}
		both := func(text string) bool {
			w = get(d.ServeV2, "/openapi/v2", "application/json")
			return w.Code == 200 && strings.Contains(w.Body.String(), "list things") && strings.Contains(w.Body.String(), text)
		}
		if !both("weight") || strings.Contains(w.Body.String(), "secrets") {
			t.Errorf("v2: %d %s", w.Code, w.Body)
		}
		if e.asked[prefix2] != 1 || e.asked[prefix3] != 1 {
			t.Errorf("asked within a minute: %v", e.asked)
		}
		time.Sleep(fetchInterval - time.Second)
		both("weight")
		time.Sleep(2 * time.Second)
		e.text = strings.ReplaceAll(elderly, "weight", "colour")
		if !both("colour") {
			t.Errorf("v2 a minute later: %s", w.Body)
		}
		time.Sleep(fetchInterval - time.Second)
		both("colour")
		time.Sleep(2 * time.Second)
		if e.down = true; !both("colour") {
			t.Errorf("v2 of a server that is down: %s", w.Body)
		}
		d.Drop()
		if both("colour") || w.Code != 200 {
			t.Errorf("of a server that is down, nothing is known any more: %d %s", w.Code, w.Body)
		}
		d.Drop()
		if e.down, e.text = false, `{"paths":`; both("colour") || w.Code != 200 {
			t.Errorf("v2 beside one that makes no sense: %d %s", w.Code, w.Body)
		}
		d.Drop()
	})
}
