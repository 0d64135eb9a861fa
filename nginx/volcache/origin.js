// A miss: fetch the file from the origin once, store it, and answer with it.

// Returns the lifetime of an answer in seconds; 0: it must not be stored.
function lifetime(headers, usual) {
    const control = (headers['Cache-Control'] || '').toLowerCase();
    // njs has an array of the cookies, also without any.
    const cookies = headers['Set-Cookie'] || [];
    if (/no-store|no-cache|private/.test(control) || cookies.length || headers['Vary']) {
        return 0;
    }
    const given = /s-maxage=(\d+)/.exec(control) || /max-age=(\d+)/.exec(control);
    if (given) {
        return Math.max(0, Number(given[1]) - Number(headers['Age'] || 0));
    }
    if (headers['Expires']) {
        const now = headers['Date'] ? Date.parse(headers['Date']) : Date.now();
        return Math.max(0, Math.floor((Date.parse(headers['Expires']) - now) / 1000)) || 0;
    }
    return Number(usual);
}

async function fill(r) {
    const vars = r.variables;
    // Without its body, which might not fit into memory.
    const head = await r.subrequest('/-/origin', {method: 'HEAD'});
    const headers = head.headersOut, length = headers['Content-Length'];
    const seconds = lifetime(headers, vars.volcache_origin_ttl);
    // A %3F in the path would be stored as if it began a query.
    if (head.status !== 200 || !length || !seconds || vars.uri.includes('?')
        || Number(length) > Number(vars.volcache_origin_max)) {
        r.internalRedirect('/-/origin');
        return;
    }
    const found = await r.subrequest('/-/origin');
    const body = found.responseBuffer, isWhole = body && body.length === Number(length);
    if (found.status === 200 && isWhole) {
        vars.volcache_origin_type = headers['Content-Type'] || '';
        vars.volcache_origin_encoding = headers['Content-Encoding'] || '';
        vars.volcache_origin_control = 'max-age=' + seconds;
        await r.subrequest('/-/store', {method: 'PUT', body: body});
        r.headersOut['Cache-Control'] = 'max-age=' + seconds;
        r.headersOut['X-Cache'] = 'FILLED';
    }
    ['Content-Type', 'Content-Encoding'].filter(name => headers[name]).forEach(name => {
        r.headersOut[name] = headers[name];
    });
    r.return(isWhole ? found.status : 502, body);
}

export default {fill};
