{{- define "nightshift.name" -}}
{{- if contains "nightshift" .Release.Name }}{{ .Release.Name | trunc 50 | trimAll "-" }}{{ else }}{{ printf "%s-nightshift" .Release.Name | trunc 50 | trimAll "-" }}{{ end -}}
{{- end }}

{{/* fit: [name, suffix, longest name that this kind may have]: a name that is too long gets a hash for its end */}}
{{- define "nightshift.fit" -}}
{{- $name := index . 0 }}{{ $suffix := index . 1 }}{{ $room := sub (index . 2) (len $suffix) | int -}}
{{- if gt (len $name) $room }}{{ $name = printf "%s-%s" ($name | trunc (sub $room 9 | int) | trimAll "-") ($name | sha256sum | trunc 8) }}{{ end -}}
{{ $name }}{{ $suffix }}
{{- end }}

{{- define "nightshift.selector" -}}
app.kubernetes.io/name: nightshift
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "nightshift.labels" -}}
{{ include "nightshift.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "nightshift.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "nightshift.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{/* image: [root, own image, image that stands in for empty fields] */}}
{{- define "nightshift.image" -}}
{{- $root := index . 0 }}{{ $own := index . 1 }}{{ $other := index . 2 -}}
{{- $registry := $root.Values.global.imageRegistry | default $own.registry | default $other.registry -}}
{{- $repository := $own.repository | default $other.repository -}}
{{- $digest := $own.digest | default (ternary "" $other.digest (or (ne $own.tag "") (and (ne $own.repository "") (ne $own.repository $other.repository)))) -}}
{{- $tag := $own.tag | default $other.tag | default $root.Chart.AppVersion -}}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end }}{{ $repository }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end }}

{{- define "nightshift.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whom the console and the node agents answer. An empty `from` would be everybody: nobody is no rule at all. */}}
{{- define "nightshift.ingressFrom" -}}
{{- with .Values.networkPolicy.ingressFrom -}}
- from: {{- toYaml . | nindent 4 }}
  ports: [{port: http, protocol: TCP}]
{{- else }}[]{{ end }}
{{- end }}

{{/* What every container may do: nothing beyond its own process. */}}
{{- define "nightshift.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "nightshift.environment" -}}
{{- with .Values.proxy.http }}
- {name: HTTP_PROXY, value: {{ . | quote }}}
{{- end }}
{{- with .Values.proxy.https }}
- {name: HTTPS_PROXY, value: {{ . | quote }}}
{{- end }}
{{- if or .Values.proxy.http .Values.proxy.https }}
- {name: NO_PROXY, value: {{ list "localhost" "127.0.0.1" ".svc" ".cluster.local" "$(KUBERNETES_SERVICE_HOST)" .Values.proxy.noProxy | compact | join "," | quote }}}
{{- end }}
{{- if .Values.extraCA.configMap }}
- {name: SSL_CERT_FILE, value: {{ printf "/etc/nightshift/ca/%s" .Values.extraCA.key | quote }}}
{{- end }}
{{- end }}

{{- define "nightshift.acts" -}}{{ if eq .Values.mode "act" }}true{{ end }}{{- end }}

{{- define "nightshift.readsCluster" -}}{{ if or .Values.sources.kubernetes.enabled .Values.sources.kubernetes.events .Values.node.enabled .Values.scheduling.enabled .Values.power.enabled (eq .Values.mode "act") }}true{{ end }}{{- end }}

{{- define "nightshift.asksServer" -}}{{ if or (include "nightshift.readsCluster" .) (eq .Values.election.by "kubernetes") }}true{{ end }}{{- end }}

{{- define "nightshift.config" -}}
{{- $sources := list }}{{ $nodes := dict }}{{ $shared := dict -}}
{{- if .Values.sources.kubernetes.enabled }}{{ $sources = append $sources (mergeOverwrite (dict "type" "kubernetes") .Values.sources.kubernetes.settings) }}{{ end -}}
{{- if .Values.sources.kubernetes.events }}{{ $sources = append $sources (dict "type" "kubernetes_events") }}{{ end -}}
{{- with .Values.node }}{{ if .enabled -}}
{{- $selector := printf "app.kubernetes.io/instance=%s,app.kubernetes.io/component=node" $.Release.Name -}}
{{- $agents := dict "namespace" $.Release.Namespace "selector" $selector "port" (int .port) -}}
{{- if ne .tls.mode "none" -}}
{{- $name := ternary "{pod}.{namespace}.pod" (printf "%s-node.%s.svc" (include "nightshift.name" $) $.Release.Namespace) (eq .tls.mode "certManager") -}}
{{- $http := dict "ca_file" "/etc/nightshift/node-client/ca.crt" "certificate_file" "/etc/nightshift/node-client/tls.crt" "key_file" "/etc/nightshift/node-client/tls.key" -}}
{{- $_ := set $agents "certificate_name" $name -}}
{{- $_ := set $shared "connections" (dict "node-agents" $http) -}}
{{- if .powerLeases.enabled }}{{ $nodes = dict "agents" true "connection" "node-agents" }}{{ end -}}
{{- $sources = append $sources (dict "type" "node_agents" "tls" true "connection" "node-agents") -}}
{{- else -}}
{{- $sources = append $sources (dict "type" "node_agents") -}}
{{- end -}}
{{- $_ := set $shared "node_agents" $agents -}}
{{- end }}{{ end -}}
{{- with .Values.sources.prometheus }}{{ if .url }}{{ $sources = append $sources (mergeOverwrite (dict "type" "prometheus" "url" .url) .settings) }}{{ end }}{{ end -}}
{{- $sources = concat $sources .Values.sources.extra -}}
{{- $console := dict "host" "::" "port" (int .Values.console.port) -}}
{{- if and .Values.console.ingress.enabled .Values.console.ingress.tlsSecret }}{{ $_ := set $console "behind_tls" true }}{{ end -}}
{{- if .Values.console.existingSecret }}{{ $_ := set $console "secrets_dir" "/etc/nightshift/console" }}{{ end -}}
{{- with include "nightshift.publicUrl" . }}{{ $_ := set $console "public_url" . }}{{ if hasPrefix "https:" . }}{{ $_ := set $console "behind_tls" true }}{{ end }}{{ end -}}
{{- with .Values.console.oidc }}{{ if .issuer }}
{{- $oidc := dict "issuer" .issuer "client_id" .clientId -}}
{{- if .existingSecret }}{{ $_ := set $oidc "client_secret_file" (printf "/etc/nightshift/oidc/%s" .key) }}{{ end -}}
{{- $_ := set $console "oidc" (mergeOverwrite $oidc .settings) -}}
{{- end }}{{ end -}}
{{- $config := dict "cluster" .Values.cluster "state_dir" "/var/lib/nightshift" "console" $console "log" .Values.log -}}
{{- $config = merge $config $shared -}}
{{- if $sources }}{{ $_ := set $config "sources" $sources }}{{ end -}}
{{- if eq .Values.election.by "kubernetes" }}{{ $_ := set $config "election" (dict "by" "kubernetes" "name" (include "nightshift.name" .) "namespace" .Release.Namespace) }}{{ end -}}
{{- with .Values.scheduling }}{{ if .enabled }}{{ $_ := set $config "scheduling" (mergeOverwrite (dict "enabled" true "act" .act "kueue" .kueue "kinds" .kinds) .settings) }}{{ end }}{{ end -}}
{{- with .Values.power }}{{ if .enabled }}{{ $_ := set $config "power" (mergeOverwrite (dict "enabled" true "act" .act "racks" .racks "access" "pod" "nodes" $nodes) .settings) }}{{ end }}{{ end -}}
{{- if include "nightshift.acts" . }}
{{- $repairs := list }}{{ $others := list -}}
{{- range without .Values.actions "kernel_job" }}{{ if has . (list "reset_gpu" "reboot_node" "return_node" "open_rma") }}{{ $repairs = append $repairs . }}{{ else }}{{ $others = append $others . }}{{ end }}{{ end -}}
{{- $actuators := list -}}
{{- $reach := dict "access" "pod" }}{{ with .Values.rbac.namespaces }}{{ $_ := set $config "kubernetes" (dict "pod" (dict "namespaces" .)) }}{{ end -}}
{{- with .Values.global.imagePullSecrets }}{{ $_ := set $config "pull_secrets" . }}{{ end -}}
{{- if $others }}{{ $actuators = append $actuators (mergeOverwrite (dict "type" "kubernetes" "actions" $others) $reach .Values.actuatorSettings) }}{{ end -}}
{{- if $repairs }}
{{- $r := .Values.repair -}}
{{- $own := dict "type" "kubernetes_repair" "actions" $repairs "namespace" .Release.Namespace "image" (include "nightshift.image" (list . $r.image $r.image)) "runtime_class" $r.runtimeClassName -}}
{{- if $r.checkImage.repository }}{{ $_ := set $own "check_image" (include "nightshift.image" (list . $r.checkImage $r.checkImage)) }}{{ end -}}
{{- if $r.checkCommand }}{{ $_ := set $own "check_command" $r.checkCommand }}{{ end -}}
{{- $actuators = append $actuators (mergeOverwrite $own $reach .Values.actuatorSettings $r.settings) -}}
{{- end -}}
{{- if include "nightshift.searches" . }}
{{- $k := .Values.kernelSearch -}}
{{- $search := dict "type" "kubernetes_kernels" "namespace" .Release.Namespace "image" (include "nightshift.image" (list . $k.image $k.image)) "signer_secret" $k.signerSecret "runtime_class" $k.runtimeClassName -}}
{{- $actuators = append $actuators (mergeOverwrite $search $k.settings) -}}
{{- $_ := set $config "kernels" (dict "priority_class" $k.priorityClass.name) -}}
{{- end -}}
{{- $_ := set $config "actuators" $actuators -}}
{{- end -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end }}

{{/* Whether kernel searches may run as Jobs. */}}
{{- define "nightshift.searches" -}}
{{- if and (include "nightshift.acts" .) (has "kernel_job" .Values.actions) }}yes{{ end -}}
{{- end }}

{{/* Where browsers reach the console; empty where nobody has said. */}}
{{- define "nightshift.publicUrl" -}}
{{- $c := .Values.console -}}
{{- if $c.publicUrl }}{{ $c.publicUrl }}{{ else if and $c.ingress.enabled $c.ingress.tlsSecret }}https://{{ $c.ingress.host }}{{ end -}}
{{- end }}

{{/* Mistakes that a schema cannot say. */}}
{{- define "nightshift.check" -}}
{{- $postgresql := .Values.store.postgresql.existingSecret -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" (include "nightshift.name" .)) -}}
{{- fail (printf "release name %s: Services are named after it, so it begins with a letter and has no dot" .Release.Name) -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not $postgresql) -}}
{{- fail "replicas: more than one needs PostgreSQL (SQLite is one file for one daemon): name a Secret with its URL in store.postgresql.existingSecret" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.console.existingSecret) -}}
{{- fail "console.existingSecret: with more than one replica the console's keys have to be shared: name a Secret with operator.token and console.key" -}}
{{- end -}}
{{- if and (eq .Values.election.by "kubernetes") (not $postgresql) -}}
{{- fail "election.by: kubernetes elects among replicas on PostgreSQL, with the store's row as its fence: name store.postgresql.existingSecret" -}}
{{- end -}}
{{- if and (eq .Values.mode "act") (not .Values.actions) -}}
{{- fail "actions: mode is act, but no action is named; take mode: observe" -}}
{{- end -}}
{{- if and (eq .Values.mode "act") (or (has "reset_gpu" .Values.actions) (has "reboot_node" .Values.actions) (has "return_node" .Values.actions)) (not .Values.repair.image.repository) -}}
{{- fail "repair.image.repository: reset_gpu, reboot_node and return_node are Jobs that need an image with nvidia-smi, nsenter and a shell" -}}
{{- end -}}
{{- if and (include "nightshift.searches" .) (not .Values.kernelSearch.signerSecret) -}}
{{- fail "kernelSearch.signerSecret: kernel_job needs the name of a Secret with signer.key, by which its certificates are signed" -}}
{{- end -}}
{{- $v := .Values }}{{ $own := "" -}}
{{- range list
  (list "actuatorSettings" $v.actuatorSettings (dict "type" $own "actions" "actions" "namespaces" "rbac.namespaces"))
  (list "repair.settings" $v.repair.settings (dict "type" $own "actions" "actions" "namespaces" "rbac.namespaces" "namespace" $own))
  (list "kernelSearch.settings" $v.kernelSearch.settings (dict "type" $own "namespace" $own))
  (list "scheduling.settings" $v.scheduling.settings (dict "enabled" "scheduling.enabled" "act" "scheduling.act" "kueue" "scheduling.kueue" "kinds" "scheduling.kinds"))
  (list "power.settings" $v.power.settings (dict "enabled" "power.enabled" "act" "power.act" "racks" "power.racks"))
  (list "sources.kubernetes.settings" $v.sources.kubernetes.settings (dict "type" $own))
  (list "sources.prometheus.settings" $v.sources.prometheus.settings (dict "type" $own "url" "sources.prometheus.url"))
  (list "config.console" (dig "console" (dict) $v.config) (dict "port" "console.port" "secrets_dir" "console.existingSecret"))
  (list "podLabels" $v.podLabels (dict "app.kubernetes.io/name" $own "app.kubernetes.io/instance" $own "app.kubernetes.io/component" $own))
-}}
{{- $place := index . 0 }}{{ $said := index . 1 -}}
{{- range $name, $where := index . 2 }}{{ if hasKey $said $name -}}
{{- fail (printf "%s.%s: %s" $place $name (ternary (printf "say it in %s" $where) "the chart sets it" (ne $where ""))) -}}
{{- end }}{{ end }}{{ end -}}
{{- if has (dig "console" "host" "" .Values.config) (list "127.0.0.1" "localhost" "::1") -}}
{{- fail "config.console.host: probes and the Service come to the pod's own address, where nobody would listen" -}}
{{- end -}}
{{- if and .Values.scheduling.act (not .Values.scheduling.enabled) -}}
{{- fail "scheduling.act: needs scheduling.enabled" -}}
{{- end -}}
{{- if and .Values.scheduling.act (not (include "nightshift.acts" .)) -}}
{{- fail "scheduling.act: opens gates and writes holds: it needs mode: act" -}}
{{- end -}}
{{- with .Values.power -}}
{{- if and .act (not .enabled) -}}
{{- fail "power.act: needs power.enabled" -}}
{{- end -}}
{{- if and .act (not (include "nightshift.acts" $)) -}}
{{- fail "power.act: lends power limits: it needs mode: act" -}}
{{- end -}}
{{- if and .act (not .racks) -}}
{{- fail "power.racks: power.act needs racks, each with its nodes and its budget" -}}
{{- end -}}
{{- if and .act (not (and $.Values.node.enabled $.Values.node.powerLeases.enabled)) (not (dig "nodes" "urls" (dict) .settings)) -}}
{{- fail "power.act: nobody takes power limits: switch on node.enabled and node.powerLeases.enabled, or name agents in power.settings.nodes.urls" -}}
{{- end -}}
{{- end -}}
{{- range $name := list "state_dir" "store" "replica" "election" "cluster" "sources" "actuators" "log" "scheduling" "power" -}}
{{- if hasKey $.Values.config $name -}}
{{- fail (printf "config.%s: has a value of its own in this chart (see values.yaml)" $name) -}}
{{- end -}}
{{- end -}}
{{- with .Values.node -}}
{{- if and .enabled (eq .tls.mode "secret") (not .tls.existingSecret) -}}
{{- fail "node.tls.existingSecret: node.tls.mode is secret, but none is named" -}}
{{- end -}}
{{- if and .enabled (eq .tls.mode "certManager") (not .tls.certManager.issuer) -}}
{{- fail "node.tls.certManager.issuer: node.tls.mode is certManager, but no issuer is named" -}}
{{- end -}}
{{- if and .enabled (eq .tls.mode "own") (gt (float64 .tls.own.days) (float64 .tls.own.authorityDays)) -}}
{{- fail "node.tls.own.days: a certificate cannot outlive its authority (node.tls.own.authorityDays)" -}}
{{- end -}}
{{- if and .enabled .powerLeases.enabled (eq .tls.mode "none") -}}
{{- fail "node.powerLeases: they are taken by mutual TLS alone: set node.tls.mode" -}}
{{- end -}}
{{- if and .enabled (not (has .tls.mode (list "none" "own"))) (not .tls.clientSecret) -}}
{{- fail "node.tls.clientSecret: with mutual TLS the agent needs a client certificate" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.console.oidc.issuer (not (include "nightshift.publicUrl" .)) -}}
{{- fail "console.publicUrl: the identity provider sends people back there; give it, or an ingress with a certificate" -}}
{{- end -}}
{{- if and .Values.console.ingress.enabled (not .Values.console.ingress.host) -}}
{{- fail "console.ingress.host: an ingress needs the host name under which people reach the console" -}}
{{- end -}}
{{- end }}
