package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/balsahq/balsa/fault"
)

// ErrNoDocument: the group version does not exist.
var ErrNoDocument = errors.New("no such OpenAPI document")

// Config configures Documents.
type Config struct {
	Title, Version string
	Definitions    common.GetOpenAPIDefinitions
	Schemes        []*runtime.Scheme
	// WebServices returns the installed web services; it is called once all of them are installed.
	WebServices func() []*restful.WebService
	// Custom returns the established CustomResourceDefinitions; nil if there are never any.
	Custom func() []*apiextensionsv1.CustomResourceDefinition
	// Aggregated returns the group versions that other servers serve and document, in any order; nil if there are never
	// any.
	Aggregated func() []Aggregated
	// Idle is how long documents are kept after the last request. Default 2 minutes.
	Idle time.Duration
}

// Validate reports every missing field.
func (c Config) Validate() error {
	var errs []error
	if c.Definitions == nil {
		errs = append(errs, errors.New("openapi: Config.Definitions must be set"))
	}
	if c.WebServices == nil {
		errs = append(errs, errors.New("openapi: Config.WebServices must be set"))
	}
	if len(c.Schemes) == 0 {
		errs = append(errs, errors.New("openapi: Config.Schemes must be set"))
	}
	return errors.Join(errs...)
}

// Documents builds the v2 and v3 documents. Its methods are safe for concurrent use.
type Documents struct {
	cfg   Config
	build string // identifies this program; part of every hash

	mu    sync.Mutex
	timer *time.Timer
	namer *apiopenapi.DefinitionNamer
	v2    http.Handler
	v2Of  string // hash of the definitions in the v2 document
	v3    *common.OpenAPIV3Config
	group map[string]*document

	answers fetchedDocuments // of aggregated servers
}

// document is the v3 document of one group version in both encodings.
type document struct {
	hash        string
	json, proto []byte
}

// New returns Documents that has built nothing yet.
func New(cfg Config) (*Documents, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Idle == 0 {
		cfg.Idle = 2 * time.Minute
	}
	return &Documents{cfg: cfg, build: buildID(cfg.Version)}, nil
}

// touch restarts the idle time. The caller holds mu.
func (d *Documents) touch() {
	if d.timer == nil {
		d.timer = time.AfterFunc(d.cfg.Idle, fault.Contained("control/openapi", d.dropIdle))
		return
	}
	d.timer.Reset(d.cfg.Idle)
}

// restartIdle restarts the idle time.
func (d *Documents) restartIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touch()
}

// Drop forgets all built documents; the next request builds them again.
func (d *Documents) Drop() {
	d.answers.drop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.namer, d.v2, d.v2Of, d.v3, d.group = nil, nil, "", nil, nil
}

// dropIdle drops documents that no client requested for a while, and returns their memory (tens of megabytes) to the
// system.
func (d *Documents) dropIdle() {
	d.Drop()
	debug.FreeOSMemory()
}

func (d *Documents) names() *apiopenapi.DefinitionNamer {
	if d.namer == nil {
		d.namer = apiopenapi.NewDefinitionNamer(d.cfg.Schemes...)
	}
	return d.namer
}

func (d *Documents) definitions() common.GetOpenAPIDefinitions {
	return utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(d.cfg.Definitions)
}

// config3 returns the configuration for v3 documents. The caller holds mu.
func (d *Documents) config3() *common.OpenAPIV3Config {
	if d.v3 == nil {
		d.v3 = genericapiserver.DefaultOpenAPIV3Config(d.definitions(), d.names())
		d.v3.Info.Title, d.v3.Info.Version = d.cfg.Title, d.cfg.Version
		addSecurityV3(d.v3)
	}
	return d.v3
}

// handler2 returns the handler of the v2 document, and builds it if needed.
func (d *Documents) handler2(ctx context.Context) (http.Handler, error) {
	others := d.others(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touch()
	custom := d.custom()
	if of := custom.hash("") + others.hash(); d.v2 == nil || d.v2Of != of {
		d.v2, d.v2Of = nil, of
	}
	if d.v2 != nil {
		return d.v2, nil
	}
	config := genericapiserver.DefaultOpenAPIConfig(d.definitions(), d.names())
	config.Info.Title, config.Info.Version = d.cfg.Title, d.cfg.Version
	addSecurityV2(config)
	swagger, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(d.cfg.WebServices()), config)
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v2: %w", err)
	}
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)
	if swagger, err = custom.mergeV2(swagger); err != nil {
		return nil, fmt.Errorf("merge custom resources into OpenAPI v2: %w", err)
	}
	if swagger, err = others.merge(swagger); err != nil {
		return nil, fmt.Errorf("merge aggregated servers into OpenAPI v2: %w", err)
	}
	var c capture
	handler.NewOpenAPIService(swagger).RegisterOpenAPIVersionedService("/openapi/v2", &c)
	d.v2 = c.handler
	return d.v2, nil
}

// capture is a mux that keeps the one handler that a service registers.
type capture struct{ handler http.Handler }

func (c *capture) Handle(_ string, h http.Handler) { c.handler = h }

// paths returns the group version paths of v3 ("apis/apps/v1").
func (d *Documents) paths() []string {
	var out []string
	for _, ws := range d.cfg.WebServices() {
		if p := strings.TrimPrefix(ws.RootPath(), "/"); p != "" {
			out = append(out, p)
		}
	}
	return append(out, d.custom().paths()...)
}

// document3 returns the v3 document of one path, as JSON or protobuf.
func (d *Documents) document3(path string, proto bool) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touch()
	doc, hash := d.group[path], d.hash(path)
	if doc == nil || doc.hash != hash {
		data, err := d.build3(path)
		if err != nil {
			return nil, err
		}
		doc = &document{hash: hash, json: data}
		if d.group == nil {
			d.group = map[string]*document{}
		}
		d.group[path] = doc
	}
	if !proto {
		return doc.json, nil
	}
	if doc.proto == nil {
		data, err := handler3.ToV3ProtoBinary(doc.json)
		if err != nil {
			return nil, fmt.Errorf("encode OpenAPI v3 of %s: %w", path, err)
		}
		doc.proto = data
	}
	return doc.proto, nil
}

func (d *Documents) build3(path string) ([]byte, error) {
	// If a path has several web services the last one counts, as in upstream's map.
	var found *restful.WebService
	for _, ws := range d.cfg.WebServices() {
		if strings.TrimPrefix(ws.RootPath(), "/") == path {
			found = ws
		}
	}
	if found == nil {
		if spec, err := d.custom().buildV3(path); spec != nil || err != nil {
			return marshal(spec, err)
		}
		return nil, fmt.Errorf("%w: %s", ErrNoDocument, path)
	}
	spec, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{found}), d.config3())
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", path, err)
	}
	if group, version, ok := groupVersion(path); ok {
		ownKinds(spec, group, version)
	}
	return json.Marshal(spec)
}

func marshal(spec *spec3.OpenAPI, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(spec)
}
