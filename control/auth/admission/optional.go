package admission

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/autoprovision"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
)

// off are upstream's plugins that run only when they are enabled.
var off = []string{
	admit.PluginName, autoprovision.PluginName, exists.PluginName, antiaffinity.PluginName, alwayspullimages.PluginName,
	imagepolicy.PluginName, podnodeselector.PluginName, podtolerationrestriction.PluginName, eventratelimit.PluginName,
	extendedresourcetoleration.PluginName, gc.PluginName, denyserviceexternalips.PluginName, deny.PluginName,
}

// registerOptional registers these plugins; they are built when they are enabled.
func registerOptional(plugins *admission.Plugins) {
	for _, register := range []func(*admission.Plugins){
		admit.Register, autoprovision.Register, exists.Register, antiaffinity.Register, alwayspullimages.Register, imagepolicy.Register,
		podnodeselector.Register, podtolerationrestriction.Register, eventratelimit.Register, extendedresourcetoleration.Register,
		gc.Register, denyserviceexternalips.Register, deny.Register,
	} {
		register(plugins)
	}
}
